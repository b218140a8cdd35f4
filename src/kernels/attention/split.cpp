// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/attention.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/split.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/attention/decode-inl.h"
#include "kernels/attention/keys-inl.h"
#include "kernels/attention/levels-inl.h"
#include "kernels/attention/read-inl.h"
#include "kernels/attention/seen-inl.h"
#include "kernels/attention/softmax-inl.h"
#include "kernels/attention/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// Where attention finds the tile at `position`, as T: where it lies, or read into FP32. Gives what to ask for
// meanwhile: `ahead`, or nothing new.
template <KvSide kSide>
const std::byte* const* find_tile(const HeadSide& side, std::size_t head_dim, std::uint32_t position,
                                  std::uint32_t count, const std::byte* const* ahead,
                                  const std::byte* (&groups)[kTileGroups]) {
  if (reads_in_place(side.format)) {
    side.tile(position, count, groups);
    return ahead;
  }
  auto* rows = reinterpret_cast<float*>(side.copies);
  read_tile<kSide>(side, head_dim, position, count, rows);
  groups_of_read(rows, head_dim, count, groups);
  return groups;
}

// Scores of every row against the keys that some row sees, which are stored as T, or read into it.
template <class T>
void split_scores(const SplitTask& t, const Seen& seen, const Ahead& ahead) {
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    const std::uint32_t count = seen.keys.end - at;
    const ScoreTile tile{t.q, t.padded_dim, t.head_dim, t.scale, t.scores + at};
    const std::byte* groups[kTileGroups];
    const std::byte* const* soon =
        find_tile<KvSide::kKey>(t.keys, t.head_dim, t.start + at, count, ahead.of_keys(at), groups);
    if (rows.last - rows.first <= kMaxDirect) {
      const std::size_t here = count < kKeyTile ? count : kKeyTile;
      for_row_groups(rows.first, rows.last, [&](auto height, std::size_t row) {
        score_direct<T, height()>(tile, groups, soon, here, row);
      });
    } else {
      load_key_tile<T>(groups, t.head_dim, t.tile);
      for_row_groups(rows.first, rows.last,
                     [&](auto height, std::size_t row) { score_tile<height()>(tile, t.tile, row); });
    }
  }
}

// Weighted sums over the values that some row sees, which are stored as T, or read into it.
template <class T>
void split_values(const SplitTask& t, const Seen& seen, const Ahead& ahead) {
  for (std::uint32_t at = seen.keys.begin; at < seen.keys.end; at += kKeyTile) {
    const Seen rows = seen.of_tile(t.ranges, at);
    const std::uint32_t count = seen.keys.end - at;
    const ValueTile tile{t.scores + at, t.result.values, t.padded_dim};
    const std::byte* groups[kTileGroups];
    const std::byte* const* soon =
        find_tile<KvSide::kValue>(t.values, t.head_dim, t.start + at, count, ahead.of_values(at), groups);
    if (rows.last - rows.first <= kMaxDirect && t.head_dim == t.padded_dim) {
      add_tile(tile, StoredValues<T>{groups, soon, t.head_dim}, t.ranges, rows.first, rows.last, at);
    } else {
      for (std::size_t key = 0; key < count && key < kKeyTile; ++key) {
        const std::byte* row = groups[key / kGroup] + key % kGroup * t.head_dim * sizeof(T);
        widen_as(reinterpret_cast<const T*>(row), t.head_dim, t.tile + key * t.padded_dim);
      }
      add_tile(tile, WidenedValues{t.tile, t.padded_dim}, t.ranges, rows.first, rows.last, at);
    }
  }
}

void attend(const SplitTask& t) {
  const Seen seen(t.ranges, t.rows);
  if (seen.first == seen.last) return;
  const Ahead ahead(t, seen);
  if (levels::takes_keys(t.keys.format)) {
    level_scores(t, seen, ahead);
  } else if (t.keys.format == quant::KvFormat::kBf16) {
    split_scores<hwy::bfloat16_t>(t, seen, ahead);
  } else {
    split_scores<float>(t, seen, ahead);
  }
  for (std::size_t row = seen.first; row < seen.last; ++row) {
    softmax_row(t.scores + row * kAttentionSplitTokens, t.ranges[row], t.result.max[row], t.result.sum[row]);
    float* values = t.result.values + row * t.padded_dim;
    for (std::size_t i = 0; i < t.padded_dim; i += kVec) store_vec(hn::Zero(FloatTag()), values + i);
  }
  if (levels::has_integer_values(t.values.format)) {
    level_integers(t, seen, ahead);
  } else if (levels::takes_values(t.values.format, t.head_dim)) {
    level_values(t, seen, ahead);
  } else if (t.values.format == quant::KvFormat::kBf16) {
    split_values<hwy::bfloat16_t>(t, seen, ahead);
  } else {
    split_values<float>(t, seen, ahead);
  }
}

void fold(const SoftmaxState& state, const SoftmaxState& part, std::size_t row, std::size_t padded_dim) {
  const FloatTag d;
  const float max = state.max[row] < part.max[row] ? part.max[row] : state.max[row];
  const float keep = exp_one(state.max[row] - max);
  const float add = exp_one(part.max[row] - max);
  state.max[row] = max;
  state.sum[row] = state.sum[row] * keep + part.sum[row] * add;
  float* into = state.values + row * padded_dim;
  const float* from = part.values + row * padded_dim;
  for (std::size_t i = 0; i < padded_dim; i += kVec) {
    const FloatVec scaled = hn::Mul(load_vec(from + i), hn::Set(d, add));
    store_vec(hn::MulAdd(load_vec(into + i), hn::Set(d, keep), scaled), into + i);
  }
}

void finish(const SoftmaxState& state, std::size_t row, std::size_t padded_dim, std::size_t count,
            quant::ElementType type, void* out) {
  float* values = state.values + row * padded_dim;
  const FloatVec sum = hn::Set(FloatTag(), state.sum[row]);
  for (std::size_t i = 0; i < padded_dim; i += kVec) {
    store_vec(hn::Div(load_vec(values + i), sum), values + i);
  }
  narrow(type, values, count, out);
}

void widen_row(quant::ElementType type, const void* src, std::size_t count, float* dst) {
  widen(type, src, count, dst);
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {

HWY_EXPORT(attend);
HWY_EXPORT(fold);
HWY_EXPORT(finish);
HWY_EXPORT(widen_row);
HWY_EXPORT(round_query);
HWY_EXPORT(round_one_tile);

void attend_split(const SplitTask& task) {
  HWY_DYNAMIC_DISPATCH(attend)(task);
}

void fold_row(const SoftmaxState& state, const SoftmaxState& part, std::size_t row, std::size_t padded_dim) {
  HWY_DYNAMIC_DISPATCH(fold)(state, part, row, padded_dim);
}

void finish_row(const SoftmaxState& state, std::size_t row, std::size_t padded_dim, std::size_t count,
                quant::ElementType type, void* out) {
  HWY_DYNAMIC_DISPATCH(finish)(state, row, padded_dim, count, type, out);
}

void round_row(quant::KvFormat format, float scale, const float* q, std::size_t count, std::size_t row,
               const levels::Queries& to) {
  HWY_DYNAMIC_DISPATCH(round_query)(format, scale, q, count, row, to);
}

void round_tile_weights(quant::KvFormat format, const float* weights, const float* key_steps, KeyRange seen,
                        std::size_t keys, std::int16_t* whole, float& factor) {
  HWY_DYNAMIC_DISPATCH(round_one_tile)(format, weights, key_steps, seen, keys, whole, factor);
}

void load_row(quant::ElementType type, const void* src, std::size_t count, float* dst) {
  HWY_DYNAMIC_DISPATCH(widen_row)(type, src, count, dst);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
