// SPDX-License-Identifier: Apache-2.0
// What a device kernel says when the data of a step makes no sense: it writes one report into pinned memory
// and does nothing, instead of trapping, which would cost every user of the device its context. Plain C++20,
// usable in device code.
#pragma once

#include <cstdint>
#include <string>

namespace metrale::gpu {

// Values are part of the ABI between embedded kernels and the backend.
enum class DeviceFaultCode : std::uint32_t {
  kNone = 0,
  kTooManyRows = 1,    // value: rows of the step
  kBadTokenId = 2,     // value: the id
  kBadSlot = 3,        // value: the slot
  kBadRowId = 4,       // value: the row id
  kBadStep = 5,        // value: the sequence whose lengths contradict the launch
  kBadTableEntry = 6,  // value: the index into the block tables
  kAsked = 7,          // a test asked for it
};

// The first fault wins; the others are dropped.
struct DeviceFault {
  DeviceFaultCode code = DeviceFaultCode::kNone;
  std::uint32_t row = 0;
  std::int64_t value = 0;
};
static_assert(sizeof(DeviceFault) == 16);

// The 64-bit device variable that each embedded module has; the backend sets it to the report's address.
inline constexpr char kDeviceFaultSymbol[] = "metrale_device_fault";

// "token id 70000 in row 3 is outside the vocabulary".
[[nodiscard]] std::string to_string(const DeviceFault& fault);

}  // namespace metrale::gpu
