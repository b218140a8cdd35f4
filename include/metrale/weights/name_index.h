// SPDX-License-Identifier: Apache-2.0
// NameIndex: from a tensor name to its position in a list that its owner keeps. Sixteen bytes a name and no
// allocation of its own per name: headers hold up to a million.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <metrale/base/hash.h>

namespace metrale::weights {

// `name_at(position)` gives the name as a std::string_view; the owner passes the same list to every call.
class NameIndex {
 public:
  NameIndex() = default;

  template <class NameAt>
  NameIndex(std::uint32_t count, const NameAt& name_at) {
    slots_.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) slots_.push_back({hash(name_at(i)), i});
    // The name decides between equal hashes, so that colliding names cost a comparison and not a scan.
    std::sort(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) {
      if (a.hash != b.hash) return a.hash < b.hash;
      const auto order = name_at(a.position).compare(name_at(b.position));
      return order != 0 ? order < 0 : a.position < b.position;
    });
  }

  // The position of `name`, the lowest where several have it.
  template <class NameAt>
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name, const NameAt& name_at) const {
    const std::uint64_t wanted = hash(name);
    const auto found =
        std::lower_bound(slots_.begin(), slots_.end(), wanted, [&](const Slot& slot, std::uint64_t) {
          return slot.hash != wanted ? slot.hash < wanted : name_at(slot.position) < name;
        });
    if (found == slots_.end() || found->hash != wanted || name_at(found->position) != name)
      return std::nullopt;
    return found->position;
  }

  // Two positions that have the same name, the lower first; of several pairs the one that repeats earliest.
  template <class NameAt>
  [[nodiscard]] std::optional<std::pair<std::uint32_t, std::uint32_t>> duplicate(
      const NameAt& name_at) const {
    std::optional<std::pair<std::uint32_t, std::uint32_t>> earliest;
    for (std::size_t i = 1; i < slots_.size(); ++i) {
      const Slot& a = slots_[i - 1];
      const Slot& b = slots_[i];
      if (a.hash != b.hash || name_at(a.position) != name_at(b.position)) continue;
      if (!earliest || b.position < earliest->second) earliest = {a.position, b.position};
    }
    return earliest;
  }

 private:
  struct Slot {
    std::uint64_t hash;
    std::uint32_t position;
  };
  [[nodiscard]] static std::uint64_t hash(std::string_view name) {
    return hash64(std::as_bytes(std::span(name.data(), name.size())));
  }

  std::vector<Slot> slots_;
};

}  // namespace metrale::weights
