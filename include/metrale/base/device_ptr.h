// SPDX-License-Identifier: Apache-2.0
// DevicePtr: an address in a backend's memory. It lives in base so that io and net can register device
// ranges.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace metrale {

class DevicePtr {
 public:
  constexpr DevicePtr() = default;
  constexpr explicit DevicePtr(std::uint64_t address) : address_(address) {}

  [[nodiscard]] constexpr std::uint64_t address() const { return address_; }
  [[nodiscard]] constexpr bool is_null() const { return address_ == 0; }
  [[nodiscard]] constexpr DevicePtr offset(std::uint64_t bytes) const { return DevicePtr(address_ + bytes); }
  friend constexpr auto operator<=>(DevicePtr, DevicePtr) = default;

 private:
  std::uint64_t address_ = 0;
};

}  // namespace metrale
