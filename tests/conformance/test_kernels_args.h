// SPDX-License-Identifier: Apache-2.0
// The arguments of the conformance suite's kernels. Addresses are device addresses; a flag is a uint32. Plain
// C++20, usable in device code.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include <metrale/gpu/kernel_id.h>

namespace metrale::testing_kernels {

// data[i] *= factor
struct ScaleArgs {
  std::uint64_t data;  // float[count]
  std::uint32_t count;
  float factor;
};
inline constexpr gpu::KernelId<ScaleArgs> kScale{"test_vector", "scale"};

// data[i] += value for i < *count
struct AddArgs {
  std::uint64_t data;   // float[]
  std::uint64_t count;  // uint32
  std::uint64_t value;
};
inline constexpr gpu::KernelId<AddArgs> kAdd{"test_vector", "add_from_device_counter"};

// bytes [address, address + count) = value
struct FillArgs {
  std::uint64_t address;
  std::uint32_t count;
  std::uint32_t value;
};
inline constexpr gpu::KernelId<FillArgs> kFill{"test_vector", "fill"};

// *value = *value * 31 + number: the result tells in which order such kernels ran.
struct AppendArgs {
  std::uint64_t value;  // uint64
  std::uint64_t number;
};
inline constexpr gpu::KernelId<AppendArgs> kAppend{"test_vector", "append"};

// Spins until *flag is not zero.
struct WaitOnFlagArgs {
  std::uint64_t flag;
};
inline constexpr gpu::KernelId<WaitOnFlagArgs> kWaitOnFlag{"test_flags", "wait_on_flag"};

// Raises its own flag, then spins until the other is up.
struct MeetArgs {
  std::uint64_t mine;
  std::uint64_t other;
};
inline constexpr gpu::KernelId<MeetArgs> kMeet{"test_flags", "meet"};

// Fails its stream.
struct FailArgs {
  std::uint64_t code;
};
inline constexpr gpu::KernelId<FailArgs> kFail{"test_faults", "fail"};

// Does nothing.
struct EmptyArgs {
  std::uint64_t unused;
};
inline constexpr gpu::KernelId<EmptyArgs> kEmpty{"test_vector", "empty"};

// Module and function of each.
inline constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {kScale.module, kScale.function}, {kAdd.module, kAdd.function},
    {kFill.module, kFill.function},   {kAppend.module, kAppend.function},
    {kMeet.module, kMeet.function},   {kWaitOnFlag.module, kWaitOnFlag.function},
    {kFail.module, kFail.function},   {kEmpty.module, kEmpty.function}};

}  // namespace metrale::testing_kernels
