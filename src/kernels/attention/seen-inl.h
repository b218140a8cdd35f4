// SPDX-License-Identifier: Apache-2.0
// Which rows see which keys of a split, and in which order its memory is read. Compiled once per instruction
// set.
#if defined(METRALE_KERNELS_ATTENTION_SEEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_ATTENTION_SEEN_INL_H_
#undef METRALE_KERNELS_ATTENTION_SEEN_INL_H_
#else
#define METRALE_KERNELS_ATTENTION_SEEN_INL_H_
#endif

#include <metrale/kernels/attention.h>

#include "kernels/attention/levels.h"
#include "kernels/attention/split.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// Rows [first, last) see some of the split, together the keys of `keys`, which starts with a group.
struct Seen {
  Seen(const KeyRange* ranges, std::size_t rows) {
    while (first < rows && ranges[first].end == 0) ++first;
    last = first;
    while (last < rows && !ranges[last].empty()) ++last;
    if (last != first) keys = {ranges[first].begin / kGroup * kGroup, ranges[last - 1].end};
  }

  // Of them, those that see the tile at `at`.
  [[nodiscard]] Seen of_tile(const KeyRange* ranges, std::uint32_t at) const {
    Seen rows = *this;
    while (ranges[rows.first].end <= at) ++rows.first;
    while (ranges[rows.last - 1].begin >= at + kKeyTile) --rows.last;
    return rows;
  }

  std::size_t first = 0;
  std::size_t last = 0;
  KeyRange keys;
};

// The groups of a split in the order in which they are read, then some of the next split's: while group i is
// worked on, group i + distance is asked for. Reads jump from block to block, which hardware does not
// foresee.
class Ahead {
 public:
  Ahead(const SplitTask& t, const Seen& seen)
      : t_(t),
        first_(seen.keys.begin),
        groups_((seen.keys.end - seen.keys.begin + kGroup - 1) / kGroup),
        distance_(distance_of(t.keys)) {
    if (t.keys.is_grouped()) {
      for (const HeadSide* side : {&t.keys, &t.values}) {
        for (std::uint32_t at = first_; at < seen.keys.end; at += kGroup) add(*side, t.start + at);
      }
      for (std::uint32_t at = 0; at < t.next_keys && at < kMost * kGroup; at += kGroup) {
        add(t.keys, t.start + kAttentionSplitTokens + at);
      }
    }
    const std::byte* nothing = t.keys.row(t.start + first_);
    for (std::size_t i = known_; i < kAll; ++i) codes_[i] = nothing;
  }

  [[nodiscard]] const std::byte* const* of_keys(std::size_t at) const { return codes_ + key_group(at); }
  [[nodiscard]] const std::byte* const* of_values(std::size_t at) const { return codes_ + value_group(at); }

  // The same for a tile that is read by octets.
  void of_keys(std::size_t at, levels::StoredTile& tile) const { of_tile(key_group(at), tile); }
  void of_values(std::size_t at, levels::StoredTile& tile) const { of_tile(value_group(at), tile); }

 private:
  static constexpr std::size_t kBytes = 8192;
  static constexpr std::size_t kMost = 8;
  static constexpr std::size_t kAll = 2 * kAttentionSplitTokens / kGroup + kMost + kTileGroups;

  static std::size_t distance_of(const HeadSide& keys) {
    const std::size_t distance = kBytes / (kGroup * keys.row_bytes);
    return distance < 1 ? 1 : distance > kMost ? kMost : distance;
  }

  void add(const HeadSide& side, std::uint32_t position) {
    codes_[known_] = side.row(position);
    headers_[known_++] = side.header_bytes == 0 ? nullptr : side.header(position);
  }

  [[nodiscard]] std::size_t key_group(std::size_t at) const { return (at - first_) / kGroup + distance_; }
  [[nodiscard]] std::size_t value_group(std::size_t at) const { return groups_ + key_group(at); }

  void of_tile(std::size_t group, levels::StoredTile& tile) const {
    for (std::size_t octet = 0; octet < kKeyTile / kOctet; ++octet) {
      const std::size_t from = group + octet / 2;
      const bool values = from >= groups_ && from < 2 * groups_;
      const HeadSide& side = values ? t_.values : t_.keys;
      const std::size_t keys = from < known_ ? kOctet : 0;  // what is not known is asked for at no cost
      const std::size_t first = octet % 2 * keys;
      tile.soon[octet] = {.codes = codes_[from] + first * side.row_bytes,
                          .part_bytes = keys * side.row_bytes * 8 / t_.head_dim,
                          .headers = codes_[from],
                          .header_bytes = keys * side.header_bytes};
      if (keys * side.header_bytes != 0)
        tile.soon[octet].headers = headers_[from] + first * side.header_bytes;
    }
  }

  static constexpr std::size_t kOctet = levels::kOctet;

  const SplitTask& t_;
  const std::byte* codes_[kAll];
  const std::byte* headers_[kAll];
  std::size_t known_ = 0;
  std::uint32_t first_;
  std::size_t groups_;
  std::size_t distance_;
};

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_SEEN_INL_H_
