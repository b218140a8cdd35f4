// SPDX-License-Identifier: Apache-2.0
// Register tiles of attention, compiled once per instruction set: a key tile transposed to FP32, and the two
// products. Every element is one chain of fused multiply-adds in increasing order, so the tile that computes
// it does not show in its bits.
#if defined(METRALE_KERNELS_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_ATTENTION_TILES_INL_H_
#undef METRALE_KERNELS_ATTENTION_TILES_INL_H_
#else
#define METRALE_KERNELS_ATTENTION_TILES_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "kernels/attention/split.h"
#include "kernels/math/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

inline constexpr std::size_t kMaxHeight = 6;  // rows of a register tile

// Vectors beside each other in a register tile of `height` rows: accumulators fill the register file.
constexpr std::size_t tile_width(std::size_t height) {
  return kVec == 16 || height <= 3 ? 4 : 2;
}

using QuadVec = hn::Vec<BitsTag>;

// 16 bytes of every fourth key: one 128-bit block for each.
template <class D>
HWY_INLINE hn::Vec<D> load_quads(D d, const std::byte* const* rows, std::size_t offset) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(rows[0] + offset));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_quads(half, rows + hn::MaxLanes(half), offset),
                       load_quads(half, rows, offset));
  }
}

// Stores one 32-bit column of kVec keys as floats: two dimensions of bf16, one of fp32.
HWY_INLINE void store_column(QuadVec column, const hwy::bfloat16_t*, float* dst) {
  const BitsTag du;
  store_vec(hn::BitCast(FloatTag(), hn::ShiftLeft<16>(column)), dst);
  store_vec(hn::BitCast(FloatTag(), hn::And(column, hn::Set(du, 0xFFFF0000U))), dst + kKeyTile);
}
HWY_INLINE void store_column(QuadVec column, const float*, float* dst) {
  store_vec(hn::BitCast(FloatTag(), column), dst);
}

// Four 32-bit columns of kVec keys, 16 bytes from `offset` on.
template <class T>
HWY_INLINE void transpose_quads(const std::byte* const* rows, std::size_t offset, float* dst) {
  constexpr std::size_t kStep = 4 / sizeof(T) * kKeyTile;
  const BitsTag du;
  const hn::Repartition<std::uint64_t, BitsTag> d64;
  const QuadVec v0 = load_quads(du, rows, offset);
  const QuadVec v1 = load_quads(du, rows + 1, offset);
  const QuadVec v2 = load_quads(du, rows + 2, offset);
  const QuadVec v3 = load_quads(du, rows + 3, offset);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(du, v0, v1));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(du, v0, v1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(du, v2, v3));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(du, v2, v3));
  const T* tag = nullptr;
  store_column(hn::BitCast(du, hn::InterleaveLower(d64, low01, low23)), tag, dst);
  store_column(hn::BitCast(du, hn::InterleaveUpper(d64, low01, low23)), tag, dst + kStep);
  store_column(hn::BitCast(du, hn::InterleaveLower(d64, high01, high23)), tag, dst + 2 * kStep);
  store_column(hn::BitCast(du, hn::InterleaveUpper(d64, high01, high23)), tag, dst + 3 * kStep);
}

// tile[dim][kKeyTile] = key vectors of kKeyTile tokens, stored as T.
template <class T>
void load_key_tile(const std::byte* const* rows, std::size_t head_dim, float* tile) {
  constexpr std::size_t kDims = 16 / sizeof(T);
  const std::size_t whole = head_dim / kDims * kDims;
  for (std::size_t key = 0; key < kKeyTile; key += kVec) {
    for (std::size_t dim = 0; dim < whole; dim += kDims) {
      transpose_quads<T>(rows + key, dim * sizeof(T), tile + dim * kKeyTile + key);
    }
    if (whole == head_dim) continue;
    // A row ends within 16 bytes: its last dimensions are read from a copy.
    alignas(16) std::byte copies[kVec][16] = {};
    alignas(64) float columns[kDims * kKeyTile];
    const std::byte* ends[kVec];
    for (std::size_t i = 0; i < kVec; ++i) {
      std::memcpy(copies[i], rows[key + i] + whole * sizeof(T), (head_dim - whole) * sizeof(T));
      ends[i] = copies[i];
    }
    transpose_quads<T>(ends, 0, columns);
    for (std::size_t dim = whole; dim < head_dim; ++dim) {
      store_vec(load_vec(columns + (dim - whole) * kKeyTile), tile + dim * kKeyTile + key);
    }
  }
}

struct ScoreTile {
  const float* q;  // [row][q_stride]
  std::size_t q_stride;
  const float* keys;  // [dim][kKeyTile]
  std::size_t head_dim;
  float scale;
  float* scores;  // [row][kAttentionSplitTokens], at the tile's first key
};

// Scores of rows [row, row + kHeight) against the whole key tile.
template <std::size_t kHeight>
void score_rows(const ScoreTile& t, std::size_t row) {
  constexpr std::size_t kWidth = tile_width(kHeight);
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
      for (std::size_t k = 0; k < kWidth; ++k) keys[k] = load_vec(t.keys + dim * kKeyTile + key + k * kVec);
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kHeight; ++i) {
        const FloatVec broadcast = hn::Set(d, q[i * t.q_stride + dim]);
#pragma GCC unroll 8
        for (std::size_t k = 0; k < kWidth; ++k) acc[i][k] = hn::MulAdd(broadcast, keys[k], acc[i][k]);
      }
    }
    const FloatVec scale = hn::Set(d, t.scale);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kHeight; ++i) {
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kWidth; ++k) {
        store_vec(hn::Mul(acc[i][k], scale), t.scores + (row + i) * kAttentionSplitTokens + key + k * kVec);
      }
    }
  }
}

struct ValueTile {
  const float* weights;  // [row][kAttentionSplitTokens], at the tile's first key
  const float* tile;     // [key][stride]
  std::size_t stride;    // padded head_dim
  float* values;         // [row][stride]
};

template <std::size_t kHeight, std::size_t kWidth>
HWY_INLINE void add_values_at(const ValueTile& t, std::size_t row, std::size_t begin, std::size_t end,
                              std::size_t dim) {
  const FloatTag d;
  const float* weights = t.weights + row * kAttentionSplitTokens;
  float* values = t.values + row * t.stride + dim;
  FloatVec acc[kHeight][kWidth];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kHeight; ++i) {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kWidth; ++k) acc[i][k] = load_vec(values + i * t.stride + k * kVec);
  }
  for (std::size_t j = begin; j < end; ++j) {
    FloatVec v[kWidth];
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kWidth; ++k) v[k] = load_vec(t.tile + j * t.stride + dim + k * kVec);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kHeight; ++i) {
      const FloatVec weight = hn::Set(d, weights[i * kAttentionSplitTokens + j]);
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

// Adds the weighted values of the tile's keys [begin, end) to rows [row, row + kHeight).
template <std::size_t kHeight>
void add_values(const ValueTile& t, std::size_t row, std::size_t begin, std::size_t end) {
  constexpr std::size_t kWidth = tile_width(kHeight);
  std::size_t dim = 0;
  for (; dim + kWidth * kVec <= t.stride; dim += kWidth * kVec) {
    add_values_at<kHeight, kWidth>(t, row, begin, end, dim);
  }
  for (; dim < t.stride; dim += kVec) add_values_at<kHeight, 1>(t, row, begin, end, dim);
}

// Calls body(height, row) for groups of at most kMaxHeight rows that cover [first, rows).
template <class Body>
HWY_INLINE void for_row_groups(std::size_t first, std::size_t rows, Body body) {
  std::size_t row = first;
  for (; row + kMaxHeight <= rows; row += kMaxHeight) {
    body(std::integral_constant<std::size_t, kMaxHeight>(), row);
  }
  switch (rows - row) {
    case 5:
      return body(std::integral_constant<std::size_t, 5>(), row);
    case 4:
      return body(std::integral_constant<std::size_t, 4>(), row);
    case 3:
      return body(std::integral_constant<std::size_t, 3>(), row);
    case 2:
      return body(std::integral_constant<std::size_t, 2>(), row);
    case 1:
      return body(std::integral_constant<std::size_t, 1>(), row);
    default:
      return;
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_TILES_INL_H_
