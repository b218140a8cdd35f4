// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <metrale/kernels/attention.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/split.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/attention/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

void load_keys(quant::KvFormat format, const std::byte* const* rows, std::size_t head_dim, float* tile) {
  if (format == quant::KvFormat::kBf16) {
    load_key_tile<hwy::bfloat16_t>(rows, head_dim, tile);
  } else {
    load_key_tile<float>(rows, head_dim, tile);
  }
}

void load_values(quant::KvFormat format, const std::byte* const* rows, std::size_t count,
                 std::size_t head_dim, std::size_t stride, float* tile) {
  for (std::size_t j = 0; j < count; ++j) {
    if (format == quant::KvFormat::kBf16) {
      widen_as(reinterpret_cast<const hwy::bfloat16_t*>(rows[j]), head_dim, tile + j * stride);
    } else {
      widen_as(reinterpret_cast<const float*>(rows[j]), head_dim, tile + j * stride);
    }
  }
}

void split_scores(const SplitTask& t, std::size_t keys) {
  std::size_t first = 0;  // the first row that sees the tile's first key
  for (std::size_t at = 0; at < keys; at += kKeyTile) {
    load_keys(t.k_format, t.k_rows + at, t.head_dim, t.tile);
    while (t.limits[first] <= at) ++first;
    const ScoreTile block{t.q, t.padded_dim, t.tile, t.head_dim, t.scale, t.scores + at};
    for_row_groups(first, t.rows, [&](auto height, std::size_t row) { score_rows<height()>(block, row); });
  }
}

// Turns a row of scores into weights; gives their maximum and sum.
void softmax_row(float* scores, std::size_t limit, float& max, float& sum) {
  const FloatTag d;
  const std::size_t padded = (limit + kLanes - 1) / kLanes * kLanes;
  for (std::size_t j = limit; j < padded; ++j) scores[j] = -HUGE_VALF;
  Lanes16 best = set_lanes(-HUGE_VALF);
  for (std::size_t j = 0; j < padded; j += kLanes) {
#pragma GCC unroll 2
    for (std::size_t k = 0; k < kParts; ++k) {
      best.part[k] = hn::Max(best.part[k], load_vec(scores + j + k * kVec));
    }
  }
  max = max_lanes(best);
  const FloatVec shift = hn::Set(d, max);
  Lanes16 sums = set_lanes(0.0F);
  for (std::size_t j = 0; j < padded; j += kLanes) {
#pragma GCC unroll 2
    for (std::size_t k = 0; k < kParts; ++k) {
      const FloatVec weight = exp_vec(hn::Sub(load_vec(scores + j + k * kVec), shift));
      store_vec(weight, scores + j + k * kVec);
      sums.part[k] = hn::Add(sums.part[k], weight);
    }
  }
  sum = sum_lanes(sums);
}

void split_values(const SplitTask& t, std::size_t keys, std::size_t first_row) {
  std::size_t first = first_row;
  for (std::size_t at = 0; at < keys; at += kKeyTile) {
    const std::size_t end = at + kKeyTile < keys ? at + kKeyTile : keys;
    load_values(t.v_format, t.v_rows + at, end - at, t.head_dim, t.padded_dim, t.tile);
    while (t.limits[first] <= at) ++first;
    const ValueTile block{t.scores + at, t.tile, t.padded_dim, t.result.values};
    for_row_groups(first, t.rows, [&](auto height, std::size_t row) {
      const std::size_t common = t.limits[row] < end ? t.limits[row] : end;
      add_values<height()>(block, row, 0, common - at);
      for (std::size_t i = 1; i < height(); ++i) {
        const std::size_t own = t.limits[row + i] < end ? t.limits[row + i] : end;
        if (own > common) add_values<1>(block, row + i, common - at, own - at);
      }
    });
  }
}

void attend(const SplitTask& t) {
  const std::size_t keys = t.limits[t.rows - 1];
  if (keys == 0) return;
  std::size_t first = 0;
  while (t.limits[first] == 0) ++first;
  split_scores(t, keys);
  for (std::size_t row = first; row < t.rows; ++row) {
    softmax_row(t.scores + row * kAttentionSplitTokens, t.limits[row], t.result.max[row], t.result.sum[row]);
    float* values = t.result.values + row * t.padded_dim;
    for (std::size_t i = 0; i < t.padded_dim; i += kVec) store_vec(hn::Zero(FloatTag()), values + i);
  }
  split_values(t, keys, first);
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

void load_row(quant::ElementType type, const void* src, std::size_t count, float* dst) {
  HWY_DYNAMIC_DISPATCH(widen_row)(type, src, count, dst);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
