// SPDX-License-Identifier: Apache-2.0
// Attention of many rows on tensor cores (prefill): the warps of a block take 16 rows each, share every stage
// of keys and values, walk through all splits and fold them as they come.
#pragma once

#include "kernels/attention/cuda_tensor.cuh"

namespace metrale::kernels::device {

// Two stages of keys and values of one KV head, filled by all warps.
template <std::uint32_t kDim>
class StageLoader {
 public:
  using Geometry = TensorGeometry<kDim>;
  static constexpr std::uint32_t kKeys = Geometry::kStageKeys;

  // `ids`: shared words [2][kKeys]. `seen`: what some row of the block sees.
  __device__ StageLoader(const AttentionArgs& a, const HeadBlocks& blocks, std::uint32_t kv_head,
                         std::uint32_t room, std::uint32_t* ids, const Span& seen)
      : keys_(a, a.k_pool, 2, kv_head),
        values_(a, a.v_pool, 2, kv_head),
        blocks_(blocks),
        seen_(seen),
        room_(room),
        ids_(ids),
        head_dim_(a.head_dim) {}

  [[nodiscard]] __device__ std::uint32_t keys(std::uint32_t stage) const {
    return room_ + stage % 2 * Geometry::kStageBytes;
  }
  [[nodiscard]] __device__ std::uint32_t values(std::uint32_t stage) const {
    return keys(stage) + Geometry::kStageBytes / 2;
  }

  // Asks for the block ids of stage `stage`, whose first key is at `position`.
  __device__ void ask_ids(std::uint32_t stage, std::uint32_t position) const {
    for (std::uint32_t key = threadIdx.x; key < kKeys; key += blockDim.x) {
      if (!is_read(seen_, position + key)) continue;
      copy_word(shared_address(ids_ + stage % 2 * kKeys + key),
                blocks_.table + (position + key) / blocks_.block_size);
    }
  }

  // Asks for the stage's tokens; its ids are there.
  __device__ void ask_tokens(std::uint32_t stage, std::uint32_t position) const {
    const std::uint32_t lane = threadIdx.x % kWarp;
    for (std::uint32_t job = threadIdx.x / kWarp; job < kKeys / 16 * 2; job += blockDim.x / kWarp) {
      const std::uint32_t key = job / 2 * 16 + lane % 16;
      std::int64_t offset = -1;
      if (is_read(seen_, position + key)) {
        offset = keys_.offset(ids_[stage % 2 * kKeys + key], (position + key) % blocks_.block_size);
      }
      const bool is_keys = job % 2 == 0;
      copy_tokens<kDim>(is_keys ? keys(stage) : values(stage), job / 2 * 16,
                        is_keys ? keys_.stripes : values_.stripes, offset, 0, head_dim_);
    }
  }

 private:
  const HeadStripes keys_;
  const HeadStripes values_;
  const HeadBlocks blocks_;
  const Span seen_;
  const std::uint32_t room_;
  std::uint32_t* const ids_;
  const std::uint32_t head_dim_;
};

// The totals of a warp's rows: maxima and sums in registers, values in shared memory, where each lane keeps
// its own.
template <std::uint32_t kDim>
class Totals {
 public:
  __device__ explicit Totals(std::byte* room)
      : values_(reinterpret_cast<float4*>(room) + threadIdx.x % kWarp) {}

  // Folds in the split that starts at `start`, for the rows that see it.
  __device__ __forceinline__ void add(const TileSpans& spans, std::uint32_t start,
                                      const SplitState<kDim>& state) {
    bool seen[2];
    bool first[2];
    Fold factors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = state.row_sum(i);
      seen[i] = spans.own[i].meets(start, start + kAttentionSplitTokens);
      first[i] = spans.own[i].begin >= start;
      factors[i] = {1, 0};
      if (seen[i] && first[i]) {
        max_[i] = state.max[i];
        sum_[i] = sum;
      } else if (seen[i]) {
        factors[i] = fold(max_[i], sum_[i], state.max[i], sum);
      }
    }
#pragma unroll
    for (std::uint32_t n = 0; n < kDim / 8; ++n) {
      const float4 old = values_[n * kWarp];
      const float olds[4] = {old.x, old.y, old.z, old.w};
      float next[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float value = state.values[n][e];
        const float folded = fold_value(factors[e / 2], olds[e], value);
        next[e] = !seen[e / 2] ? olds[e] : first[e / 2] ? value : folded;
      }
      values_[n * kWarp] = make_float4(next[0], next[1], next[2], next[3]);
    }
  }

  __device__ __forceinline__ void write(const AttentionArgs& a, const RowTile& tile) const {
    const unsigned lane = threadIdx.x % kWarp;
    const bool aligned = a.out % 4 == 0 && a.out_stride % 2 == 0;
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t row = lane / 4 + 8 * i;
      if (row >= tile.count) continue;
      auto* out = pointer<std::uint16_t>(a.out) + tile.element(a, row, a.out_stride);
      for (std::uint32_t n = 0; n < kDim / 8; ++n) {
        const std::uint32_t column = n * 8 + lane % 4 * 2;
        if (column >= a.head_dim) break;
        const float4 all = values_[n * kWarp];
        const std::uint16_t low = quant::float_to_bf16((i == 0 ? all.x : all.z) / sum_[i]);
        const std::uint16_t high = quant::float_to_bf16((i == 0 ? all.y : all.w) / sum_[i]);
        if (aligned) {
          *reinterpret_cast<std::uint32_t*>(out + column) = low | static_cast<std::uint32_t>(high) << 16;
        } else {
          out[column] = low;
          out[column + 1] = high;
        }
      }
    }
  }

 private:
  float4* const values_;  // [kDim / 8] of this lane, kWarp apart
  float max_[2] = {};
  float sum_[2] = {};
};

// The rows of a block: tile `warp` of them belongs to that warp.
template <std::uint32_t kDim>
__device__ __forceinline__ void attend_rows(const AttentionArgs& a, std::uint32_t seq, const RowTile& tile,
                                            const Span& seen, std::byte* shared, std::uint32_t* ids) {
  using Geometry = TensorGeometry<kDim>;
  constexpr std::uint32_t kKeys = Geometry::kStageKeys;
  const std::uint32_t warp = threadIdx.x / kWarp;
  std::byte* own = shared + Geometry::kPrefillBytes + warp * Geometry::kPrefillWarpBytes;
  const StageLoader<kDim> loader(a, HeadBlocks(a, seq), tile.kv_head, shared_address(shared), ids, seen);
  const std::uint32_t begin = seen.begin / kKeys * kKeys;
  __syncthreads();  // everyone is done with the stages of the item before
  loader.ask_ids(0, begin);
  close_copies();
  const TileSpans spans(a, tile);
  const Queries<kDim> q(a, tile, shared_address(own) + Geometry::kTotalsBytes);
  wait_copies<0>();
  __syncthreads();
  loader.ask_tokens(0, begin);
  loader.ask_ids(1, begin + kKeys);
  close_copies();
  const float scale_log2 = a.scale * kLog2E;
  Totals<kDim> totals(own);
  SplitState<kDim> state;
  state.clear();
  std::uint32_t stage = 0;
  for (std::uint32_t position = begin; position < seen.end; position += kKeys, ++stage) {
    wait_copies<0>();
    __syncthreads();  // the stage and the next one's ids are there, and everyone is done with the one before
    const std::uint32_t next = position + kKeys;
    if (next < seen.end) {
      loader.ask_tokens(stage + 1, next);
      loader.ask_ids(stage + 2, next + kKeys);
    }
    close_copies();
#pragma unroll 1
    for (std::uint32_t key = 0; key < kKeys; key += kSoftmaxTile) {
      if (!spans.any.meets(position + key, position + key + kSoftmaxTile)) continue;
      const bool partial = is_partial(spans, position + key);
      TileScores scores;
      TileWeights weights;
      score_tile(q, loader.keys(stage) + key * Geometry::kRowBytes, scores);
      weigh_tile(state, scores, scale_log2, spans, position + key, partial, weights);
      take_values(state, weights, loader.values(stage) + key * Geometry::kRowBytes, spans, position + key,
                  partial);
    }
    if (next % kAttentionSplitTokens == 0 || next >= seen.end) {
      totals.add(spans, position / kAttentionSplitTokens * kAttentionSplitTokens, state);
      state.clear();
    }
  }
  wait_copies<0>();
  totals.write(a, tile);
}

// A block for each (sequence, 16 rows a warp, KV head), the last rows first: they see most.
template <std::uint32_t kDim>
__device__ __forceinline__ void prefill_kernel(const AttentionArgs& a, std::byte* shared) {
  __shared__ std::uint32_t ids[2 * TensorGeometry<kDim>::kStageKeys];
  const std::uint32_t rows = blockDim.x / kWarp * kTileRows;
  const auto blocks_of = [&](const Sequence& s) { return (s.queries * group_heads(a) + rows - 1) / rows; };
  const auto count = [&](const Sequence& s) -> std::uint32_t {
    return s.queries == 0 || is_split(a, s) ? 0 : blocks_of(s) * a.num_kv_heads;
  };
  const auto work = [&](std::uint32_t seq, const Sequence& s, std::uint32_t item) {
    const std::uint32_t first = (blocks_of(s) - 1 - item / a.num_kv_heads) * rows;
    const std::uint32_t last = min(first + rows, s.queries * group_heads(a)) - 1;
    const Span seen{visible(a, s.position(first / group_heads(a))).begin,
                    s.position(last / group_heads(a)) + 1};
    const std::uint32_t own = first + threadIdx.x / kWarp * kTileRows;
    attend_rows<kDim>(a, seq, RowTile(a, s, item % a.num_kv_heads, own), seen, shared, ids);
  };
  for_items(a, blockIdx.x, gridDim.x, count, work);
}

}  // namespace metrale::kernels::device
