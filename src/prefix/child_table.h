// SPDX-License-Identifier: Apache-2.0
// ChildTable: every node of the tree by (parent, first block of tokens), in one table with open addressing.
// It holds 32 bits of the hash; whether a candidate is the one is for the caller to say.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "prefix/node.h"

namespace metrale::prefix {

class ChildTable {
 public:
  // The first node under `hash` that `is_it(node)` accepts, or kNone.
  template <class IsIt>
  [[nodiscard]] NodeIndex find(std::uint32_t hash, IsIt&& is_it) const {
    if (slots_.empty()) return kNone;
    for (std::size_t at = hash & mask();; at = (at + 1) & mask()) {
      const Slot& slot = slots_[at];
      if (slot.node == kNone) return kNone;
      if (slot.hash == hash && is_it(slot.node)) return slot.node;
    }
  }

  // Afterwards `count` calls of insert cannot fail. Throws std::bad_alloc.
  void reserve(std::size_t count) {
    const std::size_t wanted = size_ + count;
    if (wanted * 4 <= slots_.size() * 3) return;
    std::vector<Slot> old(std::bit_ceil(wanted * 2));
    slots_.swap(old);
    for (const Slot& slot : old) {
      if (slot.node != kNone) place(slot);
    }
  }
  void insert(std::uint32_t hash, NodeIndex node) noexcept {
    place({hash, node});
    ++size_;
  }
  void replace(std::uint32_t hash, NodeIndex before, NodeIndex after) noexcept {
    slots_[slot_of(hash, before)].node = after;
  }
  void erase(std::uint32_t hash, NodeIndex node) noexcept {
    std::size_t hole = slot_of(hash, node);
    // Close the gap: whoever stands behind it and would be looked for from before it moves up.
    for (std::size_t at = (hole + 1) & mask(); slots_[at].node != kNone; at = (at + 1) & mask()) {
      if (((at - slots_[at].hash) & mask()) >= ((at - hole) & mask())) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole] = {};
    --size_;
  }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    NodeIndex node = kNone;
  };
  [[nodiscard]] std::size_t mask() const { return slots_.size() - 1; }
  [[nodiscard]] std::size_t slot_of(std::uint32_t hash, NodeIndex node) const {
    std::size_t at = hash & mask();
    while (slots_[at].node != node) at = (at + 1) & mask();
    return at;
  }
  void place(Slot slot) noexcept {
    std::size_t at = slot.hash & mask();
    while (slots_[at].node != kNone) at = (at + 1) & mask();
    slots_[at] = slot;
  }

  std::vector<Slot> slots_;  // a power of two, at most three quarters full
  std::size_t size_ = 0;
};

}  // namespace metrale::prefix
