// SPDX-License-Identifier: Apache-2.0
// One warp's 16 rows against tiles of 32 keys on tensor cores. Decode and prefill rows go through this code
// and no other, so they get the same bits: a row of a product depends on that row alone, and a tile that a
// row sees nothing of leaves its state as it is.
//
// Rows are (query token, query head of the group), token first. Lane l holds rows l / 4 and l / 4 + 8.
#pragma once

#include "kernels/attention/cuda_mma.cuh"
#include "kernels/attention/cuda_work.cuh"

namespace metrale::kernels::device {

// Rows [first, first + count), at most 16, of one sequence and KV head.
struct RowTile {
  Sequence seq;
  std::uint32_t kv_head;
  std::uint32_t first;
  std::uint32_t count;

  __device__ RowTile(const AttentionArgs& a, const Sequence& of, std::uint32_t head, std::uint32_t from)
      : seq(of), kv_head(head), first(from) {
    const std::uint32_t rows = of.queries * group_heads(a);
    count = from < rows ? min(kTileRows, rows - from) : 0;
  }
  // Of the tile's row `row`.
  [[nodiscard]] __device__ std::uint32_t query(const AttentionArgs& a, std::uint32_t row) const {
    return (first + row) / group_heads(a);
  }
  [[nodiscard]] __device__ std::uint32_t head(const AttentionArgs& a, std::uint32_t row) const {
    return kv_head * group_heads(a) + (first + row) % group_heads(a);
  }
  [[nodiscard]] __device__ std::uint64_t element(const AttentionArgs& a, std::uint32_t row,
                                                 std::uint32_t stride) const {
    return std::uint64_t{seq.first_row + query(a, row)} * stride + std::uint64_t{head(a, row)} * a.head_dim;
  }
  [[nodiscard]] __device__ Span span(const AttentionArgs& a, std::uint32_t row) const {
    return visible(a, seq.position(query(a, row)));
  }
};

// What the rows of a tile see.
struct TileSpans {
  Span own[2];  // this lane's rows; empty for rows that do not exist
  Span any;     // what some row sees
  Span all;     // what all rows see; empty where end <= begin

  __device__ TileSpans(const AttentionArgs& a, const RowTile& tile) {
    if (tile.count == 0) return;
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t row = threadIdx.x % kWarp / 4 + 8 * i;
      if (row < tile.count) own[i] = tile.span(a, row);
    }
    const Span first = tile.span(a, 0);
    const Span last = tile.span(a, tile.count - 1);
    any = {first.begin, last.end};
    all = {last.begin, first.end};
  }
};

// Elements `index` and `index` + 1 of a BF16 array, the first in the low half.
__device__ __forceinline__ std::uint32_t load_pair(const std::uint16_t* array, std::uint64_t index,
                                                   bool aligned) {
  if (aligned) return *reinterpret_cast<const std::uint32_t*>(array + index);
  return array[index] | static_cast<std::uint32_t>(array[index + 1]) << 16;
}

// The rows' queries as factors of a product; zeros beyond head_dim and for rows that do not exist.
template <std::uint32_t kDim>
class Queries {
 public:
  // `room`: kQueryBytes of shared memory of this warp.
  __device__ Queries(const AttentionArgs& a, const RowTile& tile, std::uint32_t room) : room_(room) {
    const auto* q = pointer<const std::uint16_t>(a.q);
    const bool aligned = a.q % 4 == 0 && a.q_stride % 2 == 0;
    const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t row = lane / 4 + 8 * i;
      const bool exists = row < tile.count;
      const std::uint64_t at = exists ? tile.element(a, row, a.q_stride) : 0;
#pragma unroll
      for (std::uint32_t k = 0; k < kDim / 8; ++k) {
        const std::uint32_t column = k * 8 + lane % 4 * 2;
        const bool real = exists && column < a.head_dim;
        const std::uint32_t pair = real ? load_pair(q, at + column, aligned) : 0;
        if constexpr (kInRegisters) {
          factors_[k / 2][k % 2 * 2 + i] = pair;
        } else {
          store_word(room + chunk_at<kDim>(row, k) + lane % 4 * 4, pair);
        }
      }
    }
    if constexpr (!kInRegisters) __syncwarp();
  }

  __device__ __forceinline__ void load(std::uint32_t step, std::uint32_t (&to)[4]) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = factors_[step][i];
    } else {
      const unsigned lane = threadIdx.x % kWarp;
      load_matrices(to, room_ + chunk_at<kDim>(lane % 16, step * 2 + lane / 16));
    }
  }

 private:
  static constexpr bool kInRegisters = TensorGeometry<kDim>::kQueryInRegisters;
  std::uint32_t room_;
  std::uint32_t factors_[kInRegisters ? kDim / 16 : 1][4];
};

using TileScores = float[4][4];  // [8 keys][row l / 4: two keys, row l / 4 + 8: two keys]
// A weight is the sum of two BF16 numbers, the second what rounding left of the first: the values are
// weighted to 17 bits, as close to FP32 as the CPU's result in BF16 can tell.
struct TileWeights {
  std::uint32_t pairs[2][2][4];  // [16 keys][rounded, rest]: factors of a product
};

template <std::uint32_t kDim>
__device__ __forceinline__ void score_tile(const Queries<kDim>& q, std::uint32_t keys, TileScores& scores) {
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (auto& eight : scores) eight[0] = eight[1] = eight[2] = eight[3] = 0;
#pragma unroll
  for (std::uint32_t step = 0; step < kDim / 16; ++step) {
    std::uint32_t rows[4];
    q.load(step, rows);
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      std::uint32_t k[4];
      const std::uint32_t key = half * 16 + lane / 16 * 8 + lane % 8;
      load_matrices(k, keys + chunk_at<kDim>(key, step * 2 + lane / 8 % 2));
      multiply_add(scores[half * 2], rows, k[0], k[1]);
      multiply_add(scores[half * 2 + 1], rows, k[2], k[3]);
    }
  }
}

// Maximum (times log2 e), this lane's share of the sum, and weighted values of the rows over the keys of a
// part.
template <std::uint32_t kDim>
struct PartState {
  float values[kDim / 8][4];
  float max[2];
  float sum[2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& eight : values) eight[0] = eight[1] = eight[2] = eight[3] = 0;
    max[0] = max[1] = minus_infinity();
    sum[0] = sum[1] = 0;
  }
  [[nodiscard]] __device__ __forceinline__ float row_sum(int i) const {
    const float pair = sum[i] + __shfl_xor_sync(kFullWarp, sum[i], 1);
    return pair + __shfl_xor_sync(kFullWarp, pair, 2);
  }
};

// Scores become weights; the state moves to the new maximum and takes their sum. `partial`:
// some row does not see the whole tile.
template <std::uint32_t kDim>
__device__ __forceinline__ void weigh_tile(PartState<kDim>& state, TileScores& scores, float scale_log2,
                                           const TileSpans& spans, std::uint32_t tile, bool partial,
                                           TileWeights& weights) {
  const unsigned lane = threadIdx.x % kWarp;
  float larger[2] = {state.max[0], state.max[1]};
#pragma unroll
  for (std::uint32_t n = 0; n < 4; ++n) {
#pragma unroll
    for (std::uint32_t e = 0; e < 4; ++e) {
      const std::uint32_t key = tile + n * 8 + lane % 4 * 2 + e % 2;
      const Span& span = spans.own[e / 2];
      const bool hidden = partial && key - span.begin >= span.end - span.begin;
      scores[n][e] = hidden ? minus_infinity() : scores[n][e] * scale_log2;
      larger[e / 2] = fmaxf(larger[e / 2], scores[n][e]);
    }
  }
  float keep[2];
  float base[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    larger[i] = fmaxf(larger[i], __shfl_xor_sync(kFullWarp, larger[i], 1));
    larger[i] = fmaxf(larger[i], __shfl_xor_sync(kFullWarp, larger[i], 2));
    base[i] = exponent_base(larger[i]);
    keep[i] = state.max[i] == minus_infinity() ? 1.0F : exp2_fast(state.max[i] - base[i]);  // of nothing: all
    state.max[i] = larger[i];
    state.sum[i] *= keep[i];
  }
#pragma unroll
  for (std::uint32_t n = 0; n < 4; ++n) {
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      const float low = exp2_fast(scores[n][i * 2] - base[i]);
      const float high = exp2_fast(scores[n][i * 2 + 1] - base[i]);
      state.sum[i] += low + high;
      const std::uint32_t pair = pack_bf16(low, high);
      weights.pairs[n / 2][0][n % 2 * 2 + i] = pair;
      weights.pairs[n / 2][1][n % 2 * 2 + i] = pack_bf16(low - low_bf16(pair), high - high_bf16(pair));
    }
  }
  // A factor of 1 changes no bit, so the product may be left out.
  if (__any_sync(kFullWarp, keep[0] != 1.0F || keep[1] != 1.0F) == 0) return;
#pragma unroll
  for (auto& eight : state.values) {
    eight[0] *= keep[0];
    eight[1] *= keep[0];
    eight[2] *= keep[1];
    eight[3] *= keep[1];
  }
}

template <std::uint32_t kDim>
__device__ __forceinline__ void load_values(std::uint32_t tile, std::uint32_t half, std::uint32_t sixteen,
                                            std::uint32_t (&to)[4]) {
  const unsigned lane = threadIdx.x % kWarp;
  const std::uint32_t key = half * 16 + lane / 8 % 2 * 8 + lane % 8;
  load_matrices_transposed(to, tile + chunk_at<kDim>(key, sixteen * 2 + lane / 16));
}

template <std::uint32_t kDim>
__device__ __forceinline__ void add_values(PartState<kDim>& state, const TileWeights& weights,
                                           std::uint32_t tile) {
#pragma unroll
  for (std::uint32_t sixteen = 0; sixteen < kDim / 16; ++sixteen) {
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      std::uint32_t v[4];
      load_values<kDim>(tile, half, sixteen, v);
#pragma unroll
      for (const auto& part : weights.pairs[half]) {
        multiply_add(state.values[sixteen * 2], part, v[0], v[1]);
        multiply_add(state.values[sixteen * 2 + 1], part, v[2], v[3]);
      }
    }
  }
}

// An element of the tile is infinite or NaN.
template <std::uint32_t kDim>
__device__ __forceinline__ bool has_not_finite(std::uint32_t tile) {
  bool found = false;
  for (std::uint32_t at = threadIdx.x % kWarp * 16; at < TensorGeometry<kDim>::kTileBytes; at += kWarp * 16) {
    std::uint32_t w[4];
    load_words(w, tile + at);
    for (const std::uint32_t word : w) found = found || any_not_finite(word);
  }
  return __any_sync(kFullWarp, found) != 0;
}

// add_values for a tile that some row must not see all of and whose values are not all finite: 0 times such a
// value is not 0, so each row takes its own keys alone. The state comes and goes by value, so that it stays
// in registers wherever this rare path is not taken.
template <std::uint32_t kDim>
__device__ __noinline__ PartState<kDim> add_values_by_row(PartState<kDim> state, TileWeights weights,
                                                          std::uint32_t values, TileSpans spans,
                                                          std::uint32_t tile) {
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (std::uint32_t row = 0; row < kTileRows; ++row) {
    const std::uint32_t i = row / 8;
    const int owner = static_cast<int>(row % 8 * 4);
    const std::uint32_t begin = __shfl_sync(kFullWarp, spans.own[i].begin, owner);
    const std::uint32_t seen = __shfl_sync(kFullWarp, spans.own[i].end, owner) - begin;
    const bool mine = lane / 4 == row % 8;
#pragma unroll 1
    for (std::uint32_t step = 0; step < kDim / 8; ++step) {
      const std::uint32_t sixteen = step / 2;
      const std::uint32_t half = step % 2;
      std::uint32_t own[2][4] = {};
      for (std::uint32_t part = 0; part < 2; ++part) {
        own[part][i] = mine ? weights.pairs[half][part][i] : 0;
        own[part][i + 2] = mine ? weights.pairs[half][part][i + 2] : 0;
      }
      std::uint32_t v[4];
      load_values<kDim>(values, half, sixteen, v);
      for (std::uint32_t part = 0; part < 4; ++part) {
        const std::uint32_t key = tile + half * 16 + part % 2 * 8 + lane % 4 * 2;
        if (key - begin >= seen) v[part] &= 0xFFFF0000U;
        if (key + 1 - begin >= seen) v[part] &= 0x0000FFFFU;
      }
      for (std::uint32_t eight = 0; eight < 2; ++eight) {
        float(&sum)[4] = state.values[sixteen * 2 + eight];
        float with[4] = {sum[0], sum[1], sum[2], sum[3]};
        for (const auto& part : own) multiply_add(with, part, v[eight * 2], v[eight * 2 + 1]);
        if (mine) {
          sum[i * 2] = with[i * 2];
          sum[i * 2 + 1] = with[i * 2 + 1];
        }
      }
    }
  }
  return state;
}

// Is the tile of keys at `tile` more than some row sees?
__device__ __forceinline__ bool is_partial(const TileSpans& spans, std::uint32_t tile) {
  return tile < spans.all.begin || tile + kSoftmaxTile > spans.all.end;
}

template <std::uint32_t kDim>
__device__ __forceinline__ void take_values(PartState<kDim>& state, const TileWeights& weights,
                                            std::uint32_t values, const TileSpans& spans, std::uint32_t tile,
                                            bool partial) {
  if (partial && has_not_finite<kDim>(values)) {
    state = add_values_by_row<kDim>(state, weights, values, spans, tile);
  } else {
    add_values(state, weights, values);
  }
}

// 16 tokens of one side into rows [row, row + 16) of a tile. Lane `lane` + i knows token i's `offset`; a
// negative one stands for zeros.
template <std::uint32_t kDim>
__device__ __forceinline__ void copy_tokens(std::uint32_t to, std::uint32_t row, const std::byte* stripes,
                                            std::int64_t offset, std::uint32_t lane, std::uint32_t head_dim) {
  constexpr std::uint32_t kChunks = kDim / 8;
  constexpr std::uint32_t kRowsAtOnce = kWarp / kChunks;
  const std::uint32_t chunk = threadIdx.x % kWarp % kChunks;
  const std::uint32_t first = threadIdx.x % kWarp / kChunks;
#pragma unroll
  for (std::uint32_t i = 0; i < 16; i += kRowsAtOnce) {
    const std::int64_t from = __shfl_sync(kFullWarp, offset, static_cast<int>(lane + i + first));
    const bool real = from >= 0 && chunk * 8 < head_dim;
    copy_chunk(to + chunk_at<kDim>(row + i + first, chunk), stripes + (real ? from + chunk * 16 : 0), real);
  }
}

}  // namespace metrale::kernels::device
