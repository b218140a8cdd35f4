// SPDX-License-Identifier: Apache-2.0
// Scores of attention, compiled once per instruction set. A vector holds one dimension of several keys, so
// that a score needs no sum across lanes: keys are transposed, 16 bytes of each at a time, either into a tile
// that many rows use or in registers for a few rows.
#if defined(METRALE_KERNELS_ATTENTION_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_ATTENTION_KEYS_INL_H_
#undef METRALE_KERNELS_ATTENTION_KEYS_INL_H_
#else
#define METRALE_KERNELS_ATTENTION_KEYS_INL_H_
#endif

#include <cstring>

#include <metrale/kernels/attention.h>

#include "kernels/attention/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

using QuadVec = hn::Vec<BitsTag>;

template <class T>
inline constexpr std::size_t kBlockDims = 16 / sizeof(T);  // dimensions in 16 bytes

// One vector for each dimension of a 16-byte block: that dimension of kVec keys.
template <class T>
struct Columns {
  FloatVec dim[kBlockDims<T>];
};

// kVec keys at one distance from each other.
struct KeyRows {
  const std::byte* first;
  std::size_t stride;  // bytes
};

// 16 bytes of every fourth key: one 128-bit block for each.
template <class D>
HWY_INLINE hn::Vec<D> load_quads(D d, const std::byte* first, std::size_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(first));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_quads(half, first + hn::MaxLanes(half) * stride, stride),
                       load_quads(half, first, stride));
  }
}

// One 32-bit column of kVec keys as floats: two dimensions of bf16, one of fp32.
HWY_INLINE void widen_column(QuadVec column, std::size_t index, Columns<hwy::bfloat16_t>& out) {
  const BitsTag du;
  out.dim[2 * index] = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(column));
  out.dim[2 * index + 1] = hn::BitCast(FloatTag(), hn::And(column, hn::Set(du, 0xFFFF0000U)));
}
HWY_INLINE void widen_column(QuadVec column, std::size_t index, Columns<float>& out) {
  out.dim[index] = hn::BitCast(FloatTag(), column);
}

// The dimensions that lie in the 16 bytes from `offset` on, of kVec keys.
template <class T>
HWY_INLINE void load_columns(const KeyRows& keys, std::size_t offset, Columns<T>& out) {
  const BitsTag du;
  const hn::Repartition<std::uint64_t, BitsTag> d64;
  const std::byte* first = keys.first + offset;
  const QuadVec v0 = load_quads(du, first, keys.stride);
  const QuadVec v1 = load_quads(du, first + keys.stride, keys.stride);
  const QuadVec v2 = load_quads(du, first + 2 * keys.stride, keys.stride);
  const QuadVec v3 = load_quads(du, first + 3 * keys.stride, keys.stride);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(du, v0, v1));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(du, v0, v1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(du, v2, v3));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(du, v2, v3));
  widen_column(hn::BitCast(du, hn::InterleaveLower(d64, low01, low23)), 0, out);
  widen_column(hn::BitCast(du, hn::InterleaveUpper(d64, low01, low23)), 1, out);
  widen_column(hn::BitCast(du, hn::InterleaveLower(d64, high01, high23)), 2, out);
  widen_column(hn::BitCast(du, hn::InterleaveUpper(d64, high01, high23)), 3, out);
}

// As load_columns, where the keys end within the 16 bytes: reads `dims` dimensions of each.
template <class T>
HWY_INLINE void load_last_columns(const KeyRows& keys, std::size_t offset, std::size_t dims,
                                  Columns<T>& out) {
  alignas(16) std::byte copies[kVec][16] = {};
  for (std::size_t i = 0; i < kVec; ++i) {
    std::memcpy(copies[i], keys.first + i * keys.stride + offset, dims * sizeof(T));
  }
  load_columns({copies[0], 16}, 0, out);
}

// The kVec keys at `key` of a tile whose groups are given.
template <class T>
HWY_INLINE KeyRows rows_at(const std::byte* const* groups, std::size_t key, std::size_t head_dim) {
  const std::size_t stride = head_dim * sizeof(T);
  return {groups[key / kGroup] + key % kGroup * stride, stride};
}

// tile[dim][kKeyTile] = the tile's key vectors.
template <class T>
void load_key_tile(const std::byte* const* groups, std::size_t head_dim, float* tile) {
  const std::size_t whole = head_dim / kBlockDims<T> * kBlockDims<T>;
  for (std::size_t key = 0; key < kKeyTile; key += kVec) {
    const KeyRows keys = rows_at<T>(groups, key, head_dim);
    Columns<T> columns;
    for (std::size_t dim = 0; dim < whole; dim += kBlockDims<T>) {
      load_columns(keys, dim * sizeof(T), columns);
#pragma GCC unroll 8
      for (std::size_t c = 0; c < kBlockDims<T>; ++c) {
        store_vec(columns.dim[c], tile + (dim + c) * kKeyTile + key);
      }
    }
    if (whole == head_dim) continue;
    load_last_columns(keys, whole * sizeof(T), head_dim - whole, columns);
    for (std::size_t dim = whole; dim < head_dim; ++dim) {
      store_vec(columns.dim[dim - whole], tile + dim * kKeyTile + key);
    }
  }
}

struct ScoreTile {
  const float* q;  // [row][q_stride]
  std::size_t q_stride;
  std::size_t head_dim;
  float scale;
  float* scores;         // [row][kAttentionSplitTokens], at the tile's first key
  bool goes_on = false;  // score_direct: from what the scores are, with more dimensions
};

template <std::size_t kHeight, std::size_t kWidth>
HWY_INLINE void store_scores(const FloatVec (&acc)[kHeight][kWidth], const ScoreTile& t, std::size_t row,
                             std::size_t key) {
  const FloatVec scale = hn::Set(FloatTag(), t.scale);
  float* scores = t.scores + row * kAttentionSplitTokens + key;
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kHeight; ++i) {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kWidth; ++k) {
      store_vec(hn::Mul(acc[i][k], scale), scores + i * kAttentionSplitTokens + k * kVec);
    }
  }
}

// Scores of rows [row, row + kHeight) against a widened tile.
template <std::size_t kHeight>
void score_tile(const ScoreTile& t, const float* tile, std::size_t row) {
  constexpr std::size_t kWidth = kVec == 16 || kHeight <= 3 ? 4 : 2;  // accumulators fill the registers
  const FloatTag d;
  const float* q = t.q + row * t.q_stride;
  for (std::size_t key = 0; key < kKeyTile; key += kWidth * kVec) {
    FloatVec acc[kHeight][kWidth];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kHeight; ++i) {
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kWidth; ++k) acc[i][k] = hn::Zero(d);
    }
    for (std::size_t dim = 0; dim < t.head_dim; ++dim) {
      FloatVec keys[kWidth];
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kWidth; ++k) keys[k] = load_vec(tile + dim * kKeyTile + key + k * kVec);
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kHeight; ++i) {
        const FloatVec broadcast = hn::Set(d, q[i * t.q_stride + dim]);
#pragma GCC unroll 8
        for (std::size_t k = 0; k < kWidth; ++k) acc[i][k] = hn::MulAdd(broadcast, keys[k], acc[i][k]);
      }
    }
    store_scores(acc, t, row, key);
  }
}

// acc[i][k] += q[i][dim + c] * columns[c] for the first `dims` dimensions of a block.
template <class T, std::size_t kHeight, std::size_t kWidth>
HWY_INLINE void add_columns(const Columns<T>& columns, std::size_t dims, const float* q, std::size_t q_stride,
                            std::size_t k, FloatVec (&acc)[kHeight][kWidth]) {
#pragma GCC unroll 8
  for (std::size_t c = 0; c < kBlockDims<T>; ++c) {
    if (c >= dims) break;
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kHeight; ++i) {
      acc[i][k] = hn::MulAdd(hn::Set(FloatTag(), q[i * q_stride + c]), columns.dim[c], acc[i][k]);
    }
  }
}

// Scores of rows [row, row + kHeight) against the first `count` keys of a tile, and the rest of their groups,
// where they lie. ahead[g] is what to ask for while group g is worked on.
template <class T, std::size_t kHeight>
void score_direct(const ScoreTile& t, const std::byte* const* groups, const std::byte* const* ahead,
                  std::size_t count, std::size_t row) {
  constexpr std::size_t kWidth = kVec == 16 && kHeight <= kMaxHeight ? 2 : 1;  // chains against latency
  constexpr std::size_t kDims = kBlockDims<T>;
  const std::size_t whole = t.head_dim / kDims * kDims;
  const float* q = t.q + row * t.q_stride;
  for (std::size_t key = 0; key < count; key += kWidth * kVec) {
    FloatVec acc[kHeight][kWidth];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kHeight; ++i) {
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kWidth; ++k) {
        const float* before = t.scores + (row + i) * kAttentionSplitTokens + key + k * kVec;
        acc[i][k] = t.goes_on ? load_vec(before) : hn::Zero(FloatTag());
      }
    }
    Columns<T> columns;
    for (std::size_t dim = 0; dim < whole; dim += kDims) {
#pragma GCC unroll 2
      for (std::size_t k = 0; k < kWidth; ++k) {
        const std::size_t at = key + k * kVec;
        // As many bytes of the group ahead as of this one: 16 of each key.
        prefetch(ahead[at / kGroup] + (at % kGroup * t.head_dim + dim * kVec) * sizeof(T), kVec * 16);
        load_columns(rows_at<T>(groups, at, t.head_dim), dim * sizeof(T), columns);
        add_columns(columns, kDims, q + dim, t.q_stride, k, acc);
      }
    }
    for (std::size_t k = 0; k < kWidth && whole != t.head_dim; ++k) {
      load_last_columns(rows_at<T>(groups, key + k * kVec, t.head_dim), whole * sizeof(T), t.head_dim - whole,
                        columns);
      add_columns(columns, t.head_dim - whole, q + whole, t.q_stride, k, acc);
    }
    store_scores(acc, t, row, key);
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_KEYS_INL_H_
