// SPDX-License-Identifier: Apache-2.0
// How a device runs a kernel. Plain C++20, usable in device code.
#pragma once

#include <cstdint>

namespace metrale::gpu {

struct Dim3 {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
  friend bool operator==(const Dim3&, const Dim3&) = default;
};

// The CPU backend ignores it: its bodies split their own loops.
struct LaunchShape {
  Dim3 grid;
  Dim3 block;
  std::uint32_t shared_bytes = 0;  // dynamic
  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

}  // namespace metrale::gpu
