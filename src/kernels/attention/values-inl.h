// SPDX-License-Identifier: Apache-2.0
// Weighted sums of values, compiled once per instruction set. A vector holds several dimensions of one value;
// values come from a widened tile that many rows use, or from where they lie for a few rows.
#if defined(METRALE_KERNELS_ATTENTION_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_ATTENTION_VALUES_INL_H_
#undef METRALE_KERNELS_ATTENTION_VALUES_INL_H_
#else
#define METRALE_KERNELS_ATTENTION_VALUES_INL_H_
#endif

#include <metrale/kernels/attention.h>

#include "kernels/attention/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// Values of a tile, widened.
struct WidenedValues {
  const float* tile;   // [key][stride]
  std::size_t stride;  // padded head_dim

  template <std::size_t kWidth>
  HWY_INLINE void load(std::size_t key, std::size_t dim, FloatVec (&v)[kWidth]) const {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kWidth; ++k) v[k] = load_vec(tile + key * stride + dim + k * kVec);
  }
};

// Values of a tile where they lie, as T; head_dim is a multiple of 16. ahead[g] is what to ask for while
// group g is worked on.
template <class T>
struct StoredValues {
  const std::byte* const* groups;
  const std::byte* const* ahead;
  std::size_t head_dim;

  template <std::size_t kWidth>
  HWY_INLINE void load(std::size_t key, std::size_t dim, FloatVec (&v)[kWidth]) const {
    const std::size_t at = (key % kGroup * head_dim + dim) * sizeof(T);
    prefetch(ahead[key / kGroup] + at, kWidth * kVec * sizeof(T));
    const T* row = reinterpret_cast<const T*>(groups[key / kGroup] + at);
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kWidth; ++k) v[k] = load_vec(row + k * kVec);
  }
};

struct ValueTile {
  const float* weights;  // [row][kAttentionSplitTokens], at the tile's first key
  float* values;         // [row][stride]
  std::size_t stride;    // padded head_dim
};

template <std::size_t kHeight, std::size_t kWidth, class Source>
HWY_INLINE void add_values_at(const ValueTile& t, const Source& source, std::size_t row, std::size_t begin,
                              std::size_t end, std::size_t dim) {
  const FloatTag d;
  const float* weights = t.weights + row * kAttentionSplitTokens;
  float* values = t.values + row * t.stride + dim;
  FloatVec acc[kHeight][kWidth];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kHeight; ++i) {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kWidth; ++k) acc[i][k] = load_vec(values + i * t.stride + k * kVec);
  }
  for (std::size_t key = begin; key < end; ++key) {
    FloatVec v[kWidth];
    source.load(key, dim, v);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kHeight; ++i) {
      const FloatVec weight = hn::Set(d, weights[i * kAttentionSplitTokens + key]);
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kWidth; ++k) acc[i][k] = hn::MulAdd(weight, v[k], acc[i][k]);
    }
  }
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kHeight; ++i) {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kWidth; ++k) store_vec(acc[i][k], values + i * t.stride + k * kVec);
  }
}

// Vectors of a value beside each other, so that accumulators fill the registers.
constexpr std::size_t value_width(std::size_t height) {
  if (kVec == 16) return height <= kMaxHeight ? 4 : 2;
  return height <= 3 ? 4 : height <= kMaxHeight ? 2 : 1;
}

// Adds the weighted values of the tile's keys [begin, end) to rows [row, row + kHeight).
template <std::size_t kHeight, class Source>
void add_values(const ValueTile& t, const Source& source, std::size_t row, std::size_t begin,
                std::size_t end) {
  constexpr std::size_t kWidth = value_width(kHeight);
  std::size_t dim = 0;
  for (; dim + kWidth * kVec <= t.stride; dim += kWidth * kVec) {
    add_values_at<kHeight, kWidth>(t, source, row, begin, end, dim);
  }
  for (; dim < t.stride; dim += kVec) add_values_at<kHeight, 1>(t, source, row, begin, end, dim);
}

// Calls add(height, row, begin, end) so that every row of [first, rows) gets the tile's keys that it sees,
// each once and in increasing order. `at` is the tile's first key in the split.
template <class Add>
HWY_INLINE void for_seen_keys(const KeyRange* ranges, std::size_t first, std::size_t rows, std::size_t at,
                              const Add& add) {
  const auto in_tile = [at](std::size_t key) {
    const std::size_t here = key > at ? key - at : 0;
    return here < kKeyTile ? here : std::size_t{kKeyTile};
  };
  for_row_groups(first, rows, [&](auto height, std::size_t row) {
    // What all rows of the group see is added in one go, between what some see before it and after it.
    const std::size_t begin = in_tile(ranges[row + height() - 1].begin);
    const std::size_t end = in_tile(ranges[row].end);
    const std::size_t middle = begin < end ? begin : end;
    for (std::size_t i = 0; i + 1 < height(); ++i) {
      const std::size_t own = in_tile(ranges[row + i].begin);
      if (own < middle) add(Height<1>(), row + i, own, middle);
    }
    if (begin < end) add(height, row, begin, end);
    for (std::size_t i = 0; i < height(); ++i) {
      const std::size_t own = in_tile(ranges[row + i].begin);
      const std::size_t from = own > end ? own : end;
      const std::size_t to = in_tile(ranges[row + i].end);
      if (from < to) add(Height<1>(), row + i, from, to);
    }
  });
}

// Adds the weighted values of the tile's keys to the rows that see them.
template <class Source>
void add_tile(const ValueTile& t, const Source& source, const KeyRange* ranges, std::size_t first,
              std::size_t rows, std::size_t at) {
  for_seen_keys(ranges, first, rows, at,
                [&](auto height, std::size_t row, std::size_t begin, std::size_t end) {
                  add_values<height()>(t, source, row, begin, end);
                });
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_VALUES_INL_H_
