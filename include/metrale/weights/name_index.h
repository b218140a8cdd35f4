// SPDX-License-Identifier: Apache-2.0
// NameIndex: from a tensor name to its position in a list that its owner keeps. About eighteen bytes a name
// and no allocation of its own per name: headers hold up to a million.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
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
    std::vector<std::uint64_t> hashes;
    hashes.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) hashes.push_back(hash(name_at(i)));
    fill_buckets(hashes);
    // The name decides between equal hashes, so that names made to collide cost a comparison and not a scan.
    const auto by_hash = [&](const Slot& a, const Slot& b) {
      if (a.hash != b.hash) return a.hash < b.hash;
      const auto order = name_at(a.position).compare(name_at(b.position));
      return order != 0 ? order < 0 : a.position < b.position;
    };
    for (std::size_t i = 0; i < num_buckets(); ++i) std::sort(bucket_begin(i), bucket_begin(i + 1), by_hash);
  }

  // The position of `name`, the lowest where several have it.
  template <class NameAt>
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name, const NameAt& name_at) const {
    if (slots_.empty()) return std::nullopt;
    const std::uint64_t wanted = hash(name);
    const std::size_t bucket = bucket_of(wanted);
    const auto end = slots_.begin() + starts_[bucket + 1];
    const auto found =
        std::lower_bound(slots_.begin() + starts_[bucket], end, wanted, [&](const Slot& slot, std::uint64_t) {
          return slot.hash != wanted ? slot.hash < wanted : name_at(slot.position) < name;
        });
    if (found == end || found->hash != wanted || name_at(found->position) != name) return std::nullopt;
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

  // The owner puts its list, in which no name is twice, in another order: what was at `i` is at `to[i]`.
  void reorder(std::span<const std::uint32_t> to) {
    for (Slot& slot : slots_) slot.position = to[slot.position];
  }

 private:
  struct Slot {
    std::uint64_t hash;
    std::uint32_t position;
  };
  static constexpr std::size_t kNamesABucket = 4;  // at most, if they spread

  [[nodiscard]] static std::uint64_t hash(std::string_view name) {
    return hash64(std::as_bytes(std::span(name.data(), name.size())));
  }
  [[nodiscard]] std::size_t bucket_of(std::uint64_t hash) const { return hash >> shift_; }
  [[nodiscard]] std::size_t num_buckets() const { return starts_.size() - 2; }
  [[nodiscard]] std::vector<Slot>::iterator bucket_begin(std::size_t bucket) {
    return slots_.begin() + starts_[bucket];
  }

  // By the first bits of the hash, so that the buckets one after the other are in its order.
  void fill_buckets(std::span<const std::uint64_t> hashes) {
    const auto bits = static_cast<unsigned>(std::bit_width((hashes.size() / kNamesABucket) | 1U));
    shift_ = 64 - bits;
    starts_.resize((std::size_t{1} << bits) + 2);
    for (const std::uint64_t hash : hashes) ++starts_[bucket_of(hash) + 2];
    std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
    slots_.resize(hashes.size());
    // One further on than a bucket's own place: its start has become its end, which is where the next one
    // starts.
    for (std::uint32_t i = 0; i < hashes.size(); ++i)
      slots_[starts_[bucket_of(hashes[i]) + 1]++] = {hashes[i], i};
  }

  std::vector<Slot> slots_;            // by hash, then name, then position
  std::vector<std::uint32_t> starts_;  // of each bucket in slots_, then its size twice
  unsigned shift_ = 63;
};

}  // namespace metrale::weights
