// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include <metrale/base/checked.h>
#include <metrale/gpu/kernel_args.h>

namespace metrale::gpu {

PackedKernelArgs::PackedKernelArgs(std::span<const KernelArg> args) {
  for (const KernelArg& arg : args) {
    starts_.push_back(slots_.size());
    if (const auto* address = std::get_if<DevicePtr>(&arg)) {
      slots_.push_back(address->address());
      continue;
    }
    const auto bytes = std::get<std::span<const std::byte>>(arg);
    const std::size_t first = slots_.size();
    slots_.resize(first + std::max<std::size_t>(1, ceil_div(bytes.size(), sizeof(std::uint64_t))), 0);
    if (!bytes.empty()) std::memcpy(&slots_[first], bytes.data(), bytes.size());
  }
  // Only now: growing the slots moves them.
  for (const std::size_t start : starts_) params_.push_back(&slots_[start]);
}

}  // namespace metrale::gpu
