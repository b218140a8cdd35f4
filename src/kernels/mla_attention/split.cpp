// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla_attention/split.h"

#include <metrale/kernels/attention.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mla_attention/split.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/attention/keys-inl.h"
#include "kernels/attention/read-inl.h"
#include "kernels/attention/seen-inl.h"
#include "kernels/attention/softmax-inl.h"
#include "kernels/attention/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// Reads `count` vectors at `position` into rows[key][dim] and, transposed, into tile[dim][kKeyTile].
inline void read_both_ways(const HeadSide& side, std::size_t dim, std::uint32_t position, std::uint32_t count,
                           float* rows, float* tile) {
  read_tile<KvSide::kKey>(side, dim, position, count, rows);
  const std::byte* groups[kTileGroups];
  groups_of_read(rows, dim, count, groups);
  load_key_tile<float>(groups, dim, tile);
}

// Asks for the tile at `at` of the split, as far as its keys are among the first `known`.
inline void ask_for_tile(const MlaSplitTask& t, std::uint32_t at, std::uint32_t known) {
  for (std::uint32_t key = at; key < known && key < at + kKeyTile; ++key) {
    for (const HeadSide* side : {&t.latents, &t.ropes}) {
      prefetch(side->row(t.start + key), side->row_bytes);
      if (side->header_bytes != 0) prefetch(side->header(t.start + key), side->header_bytes);
    }
  }
}

// Scores of every row against the keys that some row sees; leaves their latents in t.read.
inline void mla_scores(const MlaSplitTask& t, const Seen& seen) {
  const std::size_t width = t.latent_dim + t.rope_dim;
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    const std::uint32_t count = seen.keys.end - at;
    ask_for_tile(t, at + kKeyTile, seen.keys.end + t.next_keys);
    read_both_ways(t.latents, t.latent_dim, t.start + at, count, t.read + at * t.latent_dim, t.tile);
    read_both_ways(t.ropes, t.rope_dim, t.start + at, count, t.read_ropes, t.tile + t.latent_dim * kKeyTile);
    const ScoreTile tile{t.q, width, width, t.scale, t.scores + at};
    for_row_groups(rows.first, rows.last,
                   [&](auto height, std::size_t row) { score_tile<height()>(tile, t.tile, row); });
  }
}

// Weighted sums of the latents that some row sees.
inline void mla_values(const MlaSplitTask& t, const Seen& seen) {
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    const ValueTile tile{t.scores + at, t.result.values, t.latent_dim};
    const WidenedValues latents{t.read + at * t.latent_dim, t.latent_dim};
    add_tile(tile, latents, t.ranges, rows.first, rows.last, at);
  }
}

// So few rows take latents from where they lie, as T, in groups of kMaxDirect.
inline constexpr std::size_t kMostInPlace = 2 * kMaxDirect;

template <class T>
void score_in_place(const ScoreTile& tile, const std::byte* const* groups, const std::byte* const* ahead,
                    std::uint32_t count, const Seen& rows) {
  const std::size_t here = count < kKeyTile ? count : kKeyTile;
  for (std::size_t row = rows.first; row < rows.last; row += kMaxDirect) {
    const std::size_t height = rows.last - row < kMaxDirect ? rows.last - row : kMaxDirect;
    with_height(height, row,
                [&](auto h, std::size_t first) { score_direct<T, h()>(tile, groups, ahead, here, first); });
  }
}

template <class T>
void mla_scores_in_place(const MlaSplitTask& t, const Seen& seen) {
  const std::size_t width = t.latent_dim + t.rope_dim;
  const std::uint32_t known = t.latents.is_grouped() ? seen.keys.end + t.next_keys : 0;
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    const std::uint32_t count = seen.keys.end - at;
    const std::uint32_t next = at + kKeyTile;
    const std::byte* groups[kTileGroups];
    const std::byte* ahead[kTileGroups];
    t.latents.tile(t.start + at, count, groups);
    if (next < known) t.latents.tile(t.start + next, known - next, ahead);
    score_in_place<T>({t.q, width, t.latent_dim, 1.0F, t.scores + at}, groups, next < known ? ahead : groups,
                      count, rows);
    read_tile<KvSide::kKey>(t.ropes, t.rope_dim, t.start + at, count, t.read_ropes);
    groups_of_read(t.read_ropes, t.rope_dim, count, groups);
    score_in_place<float>({t.q + t.latent_dim, width, t.rope_dim, t.scale, t.scores + at, true}, groups,
                          groups, count, rows);
  }
}

template <class T>
void mla_values_in_place(const MlaSplitTask& t, const Seen& seen) {
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    const std::byte* groups[kTileGroups];
    t.latents.tile(t.start + at, seen.keys.end - at, groups);
    const ValueTile tile{t.scores + at, t.result.values, t.latent_dim};
    add_tile(tile, StoredValues<T>{groups, groups, t.latent_dim}, t.ranges, rows.first, rows.last, at);
  }
}

// The rows' scores and weighted sums, each by its own function; between them scores become weights.
template <class Scores, class Values>
void attend_by(const MlaSplitTask& t, const Seen& seen, const Scores& scores, const Values& values_of) {
  scores(t, seen);
  for (std::size_t row = seen.first; row < seen.last; ++row) {
    softmax_row(t.scores + row * kAttentionSplitTokens, t.ranges[row], t.result.max[row], t.result.sum[row]);
    float* values = t.result.values + row * t.latent_dim;
    for (std::size_t i = 0; i < t.latent_dim; i += kVec) store_vec(hn::Zero(FloatTag()), values + i);
  }
  values_of(t, seen);
}

void attend_mla(const MlaSplitTask& t) {
  const Seen seen(t.ranges, t.rows);
  if (seen.first == seen.last) return;
  const bool few = t.rows <= kMostInPlace;
  if (few && t.latents.format == KvFormat::kBf16) {
    attend_by(t, seen, mla_scores_in_place<hwy::bfloat16_t>, mla_values_in_place<hwy::bfloat16_t>);
  } else if (few && t.latents.format == KvFormat::kFp32) {
    attend_by(t, seen, mla_scores_in_place<float>, mla_values_in_place<float>);
  } else {
    attend_by(t, seen, mla_scores, mla_values);
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {

HWY_EXPORT(attend_mla);

void attend_mla_split(const MlaSplitTask& task) {
  HWY_DYNAMIC_DISPATCH(attend_mla)(task);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
