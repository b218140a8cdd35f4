// SPDX-License-Identifier: Apache-2.0
// Attention over levels, a tile of 64 keys at a time, compiled once per instruction set; the levels' own
// kernels are chosen by what the processor has.
#if defined(METRALE_KERNELS_ATTENTION_LEVELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_ATTENTION_LEVELS_INL_H_
#undef METRALE_KERNELS_ATTENTION_LEVELS_INL_H_
#else
#define METRALE_KERNELS_ATTENTION_LEVELS_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstring>

#include <metrale/kernels/attention.h>

#include "kernels/attention/levels.h"
#include "kernels/attention/seen-inl.h"
#include "kernels/attention/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

inline const levels::KernelSet& level_kernels() {
  return levels::kernels(kVec == 16);
}

// Largest magnitude, as the bits of a float: what is not finite is largest.
inline std::uint32_t peak_bits(const float* q, std::size_t count) {
  const BitsTag du;
  auto peak = hn::Zero(du);
  for (std::size_t i = 0; i < count; i += kVec) {
    const auto bits = hn::And(hn::BitCast(du, load_vec(q + i)), hn::Set(du, 0x7FFFFFFFU));
    peak = hn::Max(peak, bits);
  }
  return hn::GetLane(hn::MaxOfLanes(du, peak));
}

// `q` is readable and zero, and `rounded` writable, up to the next multiple of 16.
inline void round_query(quant::KvFormat format, float scale, const float* q, std::size_t count,
                        std::int16_t* rounded, float* factor) {
  const FloatTag d;
  const hn::Rebind<std::int16_t, FloatTag> d16;
  const std::uint32_t bits = peak_bits(q, count);
  float peak = 0;
  std::memcpy(&peak, &bits, sizeof peak);
  const bool finite = peak < HUGE_VALF;
  const bool vanishes = !finite || peak < levels::kSmallestQuery;
  const FloatVec inverse = hn::Set(d, vanishes ? 0.0F : levels::kQuerySteps / peak);
  for (std::size_t i = 0; i < count; i += kVec) {
    // What is not finite may not reach the conversion.
    const FloatVec value = vanishes ? hn::Zero(d) : load_vec(q + i);
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(hn::Mul(value, inverse))), d16, rounded + i);
  }
  const float unit = peak / levels::kQuerySteps * scale;
  const float halved = levels::has_half_levels(format) ? unit * 0.5F : unit;
  *factor = finite ? halved : std::bit_cast<float>(0x7FC00000U);
}

// Scores of every row against the keys that some row sees.
inline void level_scores(const SplitTask& t, const Seen& seen, const Ahead& ahead) {
  const levels::KernelSet& kernels = level_kernels();
  levels::StoredTile tile;
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    levels::find_tile(t.keys, KvSide::kKey, t.head_dim, t.start + at, seen.keys.end - at, tile);
    ahead.of_keys(at, tile);
    kernels.read_keys(tile, t.levels);
    kernels.score({.levels = t.levels,
                   .key_groups = tile.key_groups,
                   .steps = tile.steps[0],
                   .halves = levels::has_half_levels(t.keys.format),
                   .head_dim = t.head_dim,
                   .keys = tile.keys,
                   .q = t.rounded.q,
                   .q_stride = t.padded_dim,
                   .factors = t.rounded.factors,
                   .scores = t.scores + at,
                   .scores_stride = kAttentionSplitTokens},
                  rows.first, rows.last - rows.first);
  }
}

// weights[row][kKeyTile] = the rows' weights times the steps of a record.
inline void fold_steps(const SplitTask& t, const Seen& rows, std::uint32_t at, std::size_t keys,
                       const float* steps) {
  for (std::size_t row = rows.first; row < rows.last; ++row) {
    const float* from = t.scores + row * kAttentionSplitTokens + at;
    float* to = t.weights + row * kKeyTile;
    for (std::size_t key = 0; key < keys; key += kVec) {
      store_vec(hn::Mul(load_vec(from + key), load_vec(steps + key)), to + key);
    }
  }
}

// Weighted sums over the values that some row sees.
inline void level_values(const SplitTask& t, const Seen& seen, const Ahead& ahead) {
  const levels::KernelSet& kernels = level_kernels();
  levels::StoredTile tile;
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    levels::find_tile(t.values, KvSide::kValue, t.head_dim, t.start + at, seen.keys.end - at, tile);
    ahead.of_values(at, tile);
    kernels.read_values(tile, t.levels);
    for (std::size_t first = 0; first < t.head_dim; first += quant::kKvRecordDims) {
      const std::size_t left = t.head_dim - first;
      fold_steps(t, rows, at, tile.keys, tile.steps[first / quant::kKvRecordDims]);
      const levels::Weighted weighted{.levels = t.levels,
                                      .value_stride = tile.value_stride,
                                      .weights = t.weights,
                                      .values = t.result.values + first,
                                      .stride = t.padded_dim,
                                      .first = first,
                                      .dims = left < quant::kKvRecordDims ? left : quant::kKvRecordDims};
      for_seen_keys(t.ranges, rows.first, rows.last, at,
                    [&](auto height, std::size_t row, std::size_t begin, std::size_t end) {
                      kernels.add(weighted, row, height(), begin, end);
                    });
    }
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_LEVELS_INL_H_
