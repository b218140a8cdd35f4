// SPDX-License-Identifier: Apache-2.0
// Strong integer ids: a BlockId is not a LayerId, and neither is a number by accident.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <functional>

namespace metrale {

template <class Tag, std::unsigned_integral Rep>
class Id {
 public:
  using Value = Rep;
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  Rep value_ = 0;
};

using BlockId = Id<struct BlockTag, std::uint32_t>;        // a physical KV block
using LayerId = Id<struct LayerTag, std::uint16_t>;        // an attention layer, dense from 0
using SlotId = Id<struct SlotTag, std::uint32_t>;          // a slot of an arena or a batch
using ExpertId = Id<struct ExpertTag, std::uint32_t>;      // an expert within its layer
using SnapshotId = Id<struct SnapshotTag, std::uint32_t>;  // an SSM snapshot

}  // namespace metrale

template <class Tag, std::unsigned_integral Rep>
struct std::hash<metrale::Id<Tag, Rep>> {
  std::size_t operator()(metrale::Id<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value()); }
};
