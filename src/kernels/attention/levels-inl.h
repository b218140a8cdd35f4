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

// The order in which levels of turbo4 are looked up.
inline void swap_middle(std::int8_t* bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; i += 16) {
    std::uint32_t words[4];
    std::memcpy(words, bytes + i, sizeof words);
    const std::uint32_t swapped[4] = {words[0], words[2], words[1], words[3]};
    std::memcpy(bytes + i, swapped, sizeof swapped);
  }
}

inline void round_query(quant::KvFormat format, float scale, const float* q, std::size_t count,
                        std::size_t row, const levels::Queries& to) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<std::int16_t, FloatTag> d16;
  const hn::Rebind<std::int8_t, FloatTag> d8;
  const std::uint32_t bits = peak_bits(q, count);
  float peak = 0;
  std::memcpy(&peak, &bits, sizeof peak);
  const bool finite = peak < HUGE_VALF;
  const bool vanishes = !finite || peak < levels::kSmallestQuery;
  const FloatVec inverse = hn::Set(d, vanishes ? 0.0F : levels::kQuerySteps / peak);
  auto sum = hn::Zero(di);
  for (std::size_t i = 0; i < count; i += kVec) {
    // What is not finite may not reach the conversion.
    const FloatVec value = vanishes ? hn::Zero(d) : load_vec(q + i);
    const auto whole = hn::NearestInt(hn::Mul(value, inverse));
    const auto upper = hn::ShiftRight<8>(hn::Add(whole, hn::Set(di, 128)));
    const auto lower = hn::Sub(whole, hn::ShiftLeft<8>(upper));
    const std::size_t at = row * to.stride + i;
    hn::StoreU(hn::DemoteTo(d16, whole), d16, to.whole + at);
    hn::StoreU(hn::DemoteTo(d8, upper), d8, to.upper + at);
    hn::StoreU(hn::DemoteTo(d8, lower), d8, to.lower + at);
    if (i % quant::kKvRecordDims == 0) sum = hn::Zero(di);
    sum = hn::Add(sum, whole);
    to.sums[row * levels::kMostRecords + i / quant::kKvRecordDims] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
  if (format == quant::KvFormat::kTurbo4) {
    swap_middle(to.upper + row * to.stride, count);
    swap_middle(to.lower + row * to.stride, count);
  }
  const float unit = peak / levels::kQuerySteps * scale;
  const float halved = levels::has_half_levels(format) ? unit * 0.5F : unit;
  to.factors[row] = finite ? halved : std::bit_cast<float>(0x7FC00000U);
}

// Scores of every row against the keys that some row sees.
inline void level_scores(const SplitTask& t, const Seen& seen, const Ahead& ahead) {
  const levels::KernelSet& kernels = level_kernels();
  levels::StoredTile tile;
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    const std::size_t count = rows.last - rows.first;
    levels::find_tile(t.keys, KvSide::kKey, t.head_dim, t.start + at, seen.keys.end - at, tile);
    ahead.of_keys(at, tile);
    const levels::Scores scores{.queries = t.rounded,
                                .head_dim = t.head_dim,
                                .keys = tile.keys,
                                .levels = t.levels,
                                .key_groups = tile.key_groups,
                                .steps = tile.steps[0],
                                .halves = levels::has_half_levels(t.keys.format),
                                .scores = t.scores + at,
                                .scores_stride = kAttentionSplitTokens};
    if (count <= kernels.few_rows) {
      kernels.score_few(tile, scores, rows.first, count);
    } else {
      kernels.read_keys(tile, t.levels);
      kernels.score(scores, rows.first, count);
    }
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

// A row's weights of a tile's keys times the steps of a record, in 16 bits: see round_tile_weights().
HWY_INLINE void round_tile_row(float most, float unit, const float* weights, const float* key_steps,
                               KeyRange seen, std::size_t keys, std::int16_t* whole, float& factor) {
  const FloatTag d;
  const BitsTag du;
  const hn::Rebind<std::int16_t, FloatTag> d16;
  const hn::Repartition<std::uint8_t, decltype(d16)> d8;
  alignas(16) static constexpr std::uint8_t kTurns[16] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                          4, 5, 12, 13, 6, 7, 14, 15};
  const auto turns = hn::LoadDup128(d8, kTurns);
  alignas(64) float stepped[kKeyTile];
  auto peaks = hn::Zero(du);
  for (std::size_t key = 0; key < keys; key += kVec) {
    FloatVec weight = hn::Mul(load_vec(weights + key), load_vec(key_steps + key));
    if (key < seen.begin || key + kVec > seen.end) {
      const auto here = hn::Add(hn::Iota(du, 0), hn::Set(du, static_cast<std::uint32_t>(key)));
      const auto sees =
          hn::AndNot(hn::Lt(here, hn::Set(du, seen.begin)), hn::Lt(here, hn::Set(du, seen.end)));
      weight = hn::IfThenElseZero(hn::RebindMask(d, sees), weight);
    }
    store_vec(weight, stepped + key);
    peaks = hn::Max(peaks, hn::And(hn::BitCast(du, weight), hn::Set(du, 0x7FFFFFFFU)));
  }
  const float peak = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(du, peaks)));
  const bool finite = peak < HUGE_VALF;
  const bool vanishes = !finite || peak < levels::kSmallestWeight;
  const FloatVec inverse = hn::Set(d, vanishes ? 0.0F : most / peak);
  for (std::size_t key = 0; key < keys; key += kVec) {
    // What is not finite may not reach the conversion.
    const FloatVec weight = vanishes ? hn::Zero(d) : load_vec(stepped + key);
    const auto rounded = hn::DemoteTo(d16, hn::NearestInt(hn::Mul(weight, inverse)));
    const auto paired = hn::TableLookupBytes(hn::BitCast(d8, rounded), turns);
    hn::StoreU(hn::BitCast(d16, paired), d16, whole + key);
  }
  factor = finite ? peak / most * unit : std::bit_cast<float>(0x7FC00000U);
}

// The same for the rows that see some of a tile.
inline void round_weights(const SplitTask& t, const Seen& rows, std::uint32_t at,
                          const levels::StoredTile& tile, std::size_t record) {
  const auto most = static_cast<float>(levels::weight_steps(tile.format));
  const float unit = levels::value_unit(tile.format);
  for (std::size_t row = rows.first; row < rows.last; ++row) {
    const KeyRange seen = t.ranges[row].of_tile(at, static_cast<std::uint32_t>(tile.keys));
    round_tile_row(most, unit, t.scores + row * kAttentionSplitTokens + at, tile.steps[record], seen,
                   tile.keys, t.rounded_weights.whole + row * kKeyTile, t.rounded_weights.factors[row]);
  }
}

inline void round_one_tile(quant::KvFormat format, const float* weights, const float* key_steps,
                           KeyRange seen, std::size_t keys, std::int16_t* whole, float& factor) {
  round_tile_row(static_cast<float>(levels::weight_steps(format)), levels::value_unit(format), weights,
                 key_steps, seen, keys, whole, factor);
}

// Weighted sums over the values that some row sees, whose levels are integers. Tiles end at absolute
// multiples of 64: each row's weights are rounded by the largest in such a tile.
inline void level_integers(const SplitTask& t, const Seen& seen, const Ahead& ahead) {
  const levels::KernelSet& kernels = level_kernels();
  levels::StoredTile tile;
  std::uint32_t end = 0;
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at = end) {
    const std::uint32_t border = at / kKeyTile * kKeyTile + kKeyTile;
    end = border < seen.keys.end ? border : seen.keys.end;
    const Seen rows = seen.of_tile(t.ranges, at);
    levels::find_tile(t.values, KvSide::kValue, t.head_dim, t.start + at, end - at, tile);
    ahead.of_values(at, tile);
    const bool few = rows.last - rows.first <= kernels.few_rows && t.head_dim % 64 == 0;
    if (!few) kernels.read_integers(tile, t.levels);
    for (std::size_t first = 0; first < t.head_dim; first += quant::kKvRecordDims) {
      const std::size_t left = t.head_dim - first;
      round_weights(t, rows, at, tile, first / quant::kKvRecordDims);
      const levels::WeightedIntegers weighted{
          .levels = t.levels,
          .value_stride = tile.value_stride,
          .keys = tile.keys,
          .weights = t.rounded_weights,
          .values = t.result.values + first,
          .stride = t.padded_dim,
          .first = first,
          .dims = left < quant::kKvRecordDims ? left : quant::kKvRecordDims};
      if (few) {
        kernels.add_integers_few(tile, weighted, rows.first, rows.last - rows.first);
      } else {
        kernels.add_integers(weighted, rows.first, rows.last - rows.first);
      }
    }
  }
}

// Weighted sums over the values that some row sees, whose levels are BF16.
inline void level_values(const SplitTask& t, const Seen& seen, const Ahead& ahead) {
  const levels::KernelSet& kernels = level_kernels();
  levels::StoredTile tile;
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    levels::find_tile(t.values, KvSide::kValue, t.head_dim, t.start + at, seen.keys.end - at, tile);
    ahead.of_values(at, tile);
    const bool few = rows.last - rows.first <= kernels.few_rows && t.head_dim % 64 == 0;
    if (!few) kernels.read_values(tile, t.levels);
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
                      if (few) {
                        kernels.add_few(tile, weighted, row, height(), begin, end);
                      } else {
                        kernels.add(weighted, row, height(), begin, end);
                      }
                    });
    }
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_LEVELS_INL_H_
