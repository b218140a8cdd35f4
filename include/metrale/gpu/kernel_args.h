// SPDX-License-Identifier: Apache-2.0
// Arguments of a foreign kernel (launch_raw): a list of device addresses and byte strings, packed as drivers
// want them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include <metrale/base/device_ptr.h>

namespace metrale::gpu {

// A device address, or the bytes of a by-value parameter (kept alive by the caller during the call).
using KernelArg = std::variant<DevicePtr, std::span<const std::byte>>;

// Every argument starts on a 64-bit slot; bytes fill as many little-endian slots as they need (at least one),
// the last zero-padded. params()[i] points at argument i, valid while this object lives and is not moved.
class PackedKernelArgs {
 public:
  explicit PackedKernelArgs(std::span<const KernelArg> args);
  ~PackedKernelArgs() = default;
  PackedKernelArgs(const PackedKernelArgs&) = delete;
  PackedKernelArgs& operator=(const PackedKernelArgs&) = delete;

  [[nodiscard]] std::span<void* const> params() const { return params_; }
  [[nodiscard]] std::span<const std::uint64_t> slots() const { return slots_; }
  // Index of the first slot of each argument.
  [[nodiscard]] std::span<const std::size_t> starts() const { return starts_; }

 private:
  std::vector<std::uint64_t> slots_;
  std::vector<std::size_t> starts_;
  std::vector<void*> params_;
};

}  // namespace metrale::gpu
