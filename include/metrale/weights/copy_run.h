// SPDX-License-Identifier: Apache-2.0
// CopyRun: pieces that follow each other in staging memory and in one allocation of the device, to be copied
// at once. Allocations may be side by side, but a copy stays within one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <metrale/base/device_ptr.h>
#include <metrale/gpu/types.h>

namespace metrale::weights {

class CopyRun {
 public:
  CopyRun() = default;
  // `allocation` holds `to`.
  CopyRun(DevicePtr to, std::span<const std::byte> bytes, const gpu::DeviceRange& allocation)
      : to_(to), bytes_(bytes), end_of_allocation_(allocation.ptr.offset(allocation.bytes)) {}

  [[nodiscard]] DevicePtr to() const { return to_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  // False, and nothing changes, where these bytes do not follow.
  [[nodiscard]] bool extend(DevicePtr to, std::span<const std::byte> bytes) {
    if (bytes_.empty() || bytes_.data() + bytes_.size() != bytes.data() || to_.offset(bytes_.size()) != to)
      return false;
    if (to >= end_of_allocation_ || bytes.size() > end_of_allocation_.address() - to.address()) return false;
    bytes_ = {bytes_.data(), bytes_.size() + bytes.size()};
    return true;
  }

 private:
  DevicePtr to_;
  std::span<const std::byte> bytes_;
  DevicePtr end_of_allocation_;
};

}  // namespace metrale::weights
