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

void attend_mla(const MlaSplitTask& t) {
  const Seen seen(t.ranges, t.rows);
  if (seen.first == seen.last) return;
  mla_scores(t, seen);
  for (std::size_t row = seen.first; row < seen.last; ++row) {
    softmax_row(t.scores + row * kAttentionSplitTokens, t.ranges[row], t.result.max[row], t.result.sum[row]);
    float* values = t.result.values + row * t.latent_dim;
    for (std::size_t i = 0; i < t.latent_dim; i += kVec) store_vec(hn::Zero(FloatTag()), values + i);
  }
  mla_values(t, seen);
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
