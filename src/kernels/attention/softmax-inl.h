// SPDX-License-Identifier: Apache-2.0
// Scores of a split into weights, compiled once per instruction set.
#if defined(METRALE_KERNELS_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_ATTENTION_SOFTMAX_INL_H_
#undef METRALE_KERNELS_ATTENTION_SOFTMAX_INL_H_
#else
#define METRALE_KERNELS_ATTENTION_SOFTMAX_INL_H_
#endif

#include <cmath>

#include "kernels/attention/split.h"
#include "kernels/math/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// Turns the scores of the keys that a row sees into weights; gives their maximum and sum.
inline void softmax_row(float* scores, const KeyRange& keys, float& max, float& sum) {
  const FloatTag d;
  const std::size_t begin = keys.begin / kLanes * kLanes;
  const std::size_t end = (keys.end + kLanes - 1) / kLanes * kLanes;
  for (std::size_t j = begin; j < keys.begin; ++j) scores[j] = -HUGE_VALF;
  for (std::size_t j = keys.end; j < end; ++j) scores[j] = -HUGE_VALF;
  Lanes16 best = set_lanes(-HUGE_VALF);
  for (std::size_t j = begin; j < end; j += kLanes) {
#pragma GCC unroll 2
    for (std::size_t k = 0; k < kParts; ++k) {
      best.part[k] = hn::Max(best.part[k], load_vec(scores + j + k * kVec));
    }
  }
  max = max_lanes(best);
  const FloatVec shift = hn::Set(d, max);
  Lanes16 sums = set_lanes(0.0F);
  for (std::size_t j = begin; j < end; j += kLanes) {
#pragma GCC unroll 2
    for (std::size_t k = 0; k < kParts; ++k) {
      const FloatVec weight = exp_vec(hn::Sub(load_vec(scores + j + k * kVec), shift));
      store_vec(weight, scores + j + k * kVec);
      sums.part[k] = hn::Add(sums.part[k], weight);
    }
  }
  sum = sum_lanes(sums);
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_SOFTMAX_INL_H_
