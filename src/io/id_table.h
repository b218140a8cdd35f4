// SPDX-License-Identifier: Apache-2.0
// IdTable: entries in numbered slots under ids that are never given twice. Allocates when it is made and
// never after.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace metrale::io {

// The slot in the lower half, the generation, which begins at 1, in the upper one.
[[nodiscard]] constexpr std::uint64_t pack_id(std::uint32_t slot, std::uint32_t generation) {
  return std::uint64_t{generation} << 32 | slot;
}
[[nodiscard]] constexpr std::uint32_t slot_of(std::uint64_t id) {
  return static_cast<std::uint32_t>(id);
}
[[nodiscard]] constexpr std::uint32_t generation_of(std::uint64_t id) {
  return static_cast<std::uint32_t>(id >> 32);
}

template <class Entry>
class IdTable {
 public:
  explicit IdTable(std::uint32_t size) : slots_(size) {
    free_.reserve(size);
    for (std::uint32_t slot = size; slot-- != 0;) free_.push_back(slot);
  }

  [[nodiscard]] bool full() const { return free_.empty(); }
  // The table is not full.
  [[nodiscard]] std::uint64_t add(Entry entry) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot].entry = std::move(entry);
    slots_[slot].live = true;
    return pack_id(slot, ++slots_[slot].generation);
  }
  // Null for an id that is dead or was never given.
  [[nodiscard]] Entry* find(std::uint64_t id) {
    const std::uint32_t slot = slot_of(id);
    if (slot >= slots_.size() || !slots_[slot].live || slots_[slot].generation != generation_of(id))
      return nullptr;
    return &slots_[slot].entry;
  }
  // The id is live.
  void remove(std::uint64_t id) noexcept {
    slots_[slot_of(id)].live = false;
    slots_[slot_of(id)].entry = Entry{};
    free_.push_back(slot_of(id));
  }
  template <class Function>
  void for_each_slot(Function function) {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].live) function(slot, slots_[slot].entry);
    }
  }

 private:
  struct Slot {
    Entry entry;
    std::uint32_t generation = 0;
    bool live = false;
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace metrale::io
