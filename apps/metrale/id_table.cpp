// SPDX-License-Identifier: Apache-2.0
#include "id_table.h"

#include <span>
#include <string>
#include <utility>

#include <metrale/base/hash.h>

namespace metrale::app {
namespace {

constexpr std::uint64_t kMet = 1;

IdKey make_key(std::string_view text, std::uint64_t seed) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  IdKey key{hash64(bytes, seed), hash64(bytes, seed + 1) & ~kMet};
  if (key == IdKey{}) key.high = 1;  // zero marks a free slot
  return key;
}

bool is_free(const IdKey& slot) {
  return slot == IdKey{};
}

bool same(const IdKey& slot, const IdKey& key) {
  return slot.high == key.high && (slot.low & ~kMet) == key.low;
}

}  // namespace

IdKey id_key(std::string_view custom_id) {
  return make_key(custom_id, 0);
}

IdKey repeated_id_key(std::uint64_t line_number) {
  return make_key(std::to_string(line_number), 2);
}

IdTable::IdTable() : slots_(1024) {}

// The slot that holds the key, or the free one where it belongs.
IdKey& IdTable::slot_of(IdKey key) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = key.high & mask;
  while (!is_free(slots_[i]) && !same(slots_[i], key)) i = (i + 1) & mask;
  return slots_[i];
}

IdKey& IdTable::insert(IdKey key) {
  if ((used_ + 1) * 4 > slots_.size() * 3) {
    const std::vector<IdKey> old = std::exchange(slots_, std::vector<IdKey>(slots_.size() * 2));
    for (const IdKey& slot : old) {
      if (!is_free(slot)) slot_of({slot.high, slot.low & ~kMet}) = slot;
    }
  }
  ++used_;
  IdKey& slot = slot_of(key);
  slot = key;
  return slot;
}

void IdTable::add_result(IdKey key) {
  if (!is_free(slot_of(key))) return;
  insert(key);
  ++unmet_results_;
}

IdTable::Found IdTable::meet(IdKey key) {
  IdKey& slot = slot_of(key);
  if (is_free(slot)) {
    insert(key).low |= kMet;
    return Found::kNew;
  }
  if ((slot.low & kMet) != 0) return Found::kAgain;
  slot.low |= kMet;
  --unmet_results_;
  return Found::kResult;
}

}  // namespace metrale::app
