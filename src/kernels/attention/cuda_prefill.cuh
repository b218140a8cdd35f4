// SPDX-License-Identifier: Apache-2.0
// Attention of many rows on tensor cores (prefill): the warps of a block take 16 rows each, share every stage
// of keys and values, walk through all parts and fold them into splits, and these into totals, as they come.
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

// Which of a lane's rows see a range of keys, and which of them see nothing of their unit before it.
struct Taking {
  bool seen[2];
  bool first[2];

  // Keys [start, start + tokens) of the unit that starts at `unit`.
  __device__ Taking(const TileSpans& spans, std::uint32_t unit, std::uint32_t start, std::uint32_t tokens) {
    for (int i = 0; i < 2; ++i) {
      seen[i] = spans.own[i].meets(start, start + tokens);
      first[i] = max(spans.own[i].begin, unit) >= start;
    }
  }
};

// What a warp's rows have of a split, or of all splits: maxima and sums in registers, values in memory, where
// each lane keeps its own.
template <std::uint32_t kDim>
class Totals {
 public:
  // `values`: of this lane [kDim / 8], `stride` apart.
  __device__ Totals(float4* values, std::uint32_t stride) : values_(values), stride_(stride) {}

  // Folds in the next part.
  __device__ __forceinline__ void add(const Taking& taking, const PartState<kDim>& state) {
    const float sum[2] = {state.row_sum(0), state.row_sum(1)};
    Fold factors[2];
    fold_rows(taking, state.max, sum, factors);
    const bool all_first = all(taking.seen[0] && taking.first[0] && taking.seen[1] && taking.first[1]);
    const bool all_later = all(taking.seen[0] && !taking.first[0] && taking.seen[1] && !taking.first[1]);
    if (all_first) {
#pragma unroll
      for (std::uint32_t n = 0; n < kDim / 8; ++n) {
        const float(&v)[4] = state.values[n];
        values_[n * stride_] = make_float4(v[0], v[1], v[2], v[3]);
      }
    } else if (all_later) {
#pragma unroll
      for (std::uint32_t n = 0; n < kDim / 8; ++n) {
        const float(&v)[4] = state.values[n];
        const float4 old = values_[n * stride_];
        values_[n * stride_] =
            make_float4(fold_value(factors[0], old.x, v[0]), fold_value(factors[0], old.y, v[1]),
                        fold_value(factors[1], old.z, v[2]), fold_value(factors[1], old.w, v[3]));
      }
    } else {
#pragma unroll
      for (std::uint32_t n = 0; n < kDim / 8; ++n) {
        const float(&v)[4] = state.values[n];
        values_[n * stride_] =
            take(taking, factors, values_[n * stride_], make_float4(v[0], v[1], v[2], v[3]));
      }
    }
  }

  // Folds in the next split.
  __device__ __forceinline__ void add(const Taking& taking, const Totals& split) {
    Fold factors[2];
    fold_rows(taking, split.max_, split.sum_, factors);
#pragma unroll 8
    for (std::uint32_t n = 0; n < kDim / 8; ++n) {
      values_[n * stride_] = take(taking, factors, values_[n * stride_], split.values_[n * split.stride_]);
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
        const float4 own = values_[n * stride_];
        const std::uint16_t low = quant::float_to_bf16((i == 0 ? own.x : own.z) / sum_[i]);
        const std::uint16_t high = quant::float_to_bf16((i == 0 ? own.y : own.w) / sum_[i]);
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
  [[nodiscard]] __device__ __forceinline__ static bool all(bool here) {
    return __any_sync(kFullWarp, !here) == 0;
  }
  __device__ __forceinline__ void fold_rows(const Taking& taking, const float (&max)[2],
                                            const float (&sum)[2], Fold (&factors)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factors[i] = {1, 0};
      if (taking.seen[i] && taking.first[i]) {
        max_[i] = max[i];
        sum_[i] = sum[i];
      } else if (taking.seen[i]) {
        factors[i] = fold(max_[i], sum_[i], max[i], sum[i]);
      }
    }
  }
  [[nodiscard]] __device__ __forceinline__ static float take(bool seen, bool first, const Fold& factors,
                                                             float old, float value) {
    return !seen ? old : first ? value : fold_value(factors, old, value);
  }
  [[nodiscard]] __device__ __forceinline__ static float4 take(const Taking& t, const Fold (&factors)[2],
                                                              const float4& old, const float4& value) {
    return make_float4(take(t.seen[0], t.first[0], factors[0], old.x, value.x),
                       take(t.seen[0], t.first[0], factors[0], old.y, value.y),
                       take(t.seen[1], t.first[1], factors[1], old.z, value.z),
                       take(t.seen[1], t.first[1], factors[1], old.w, value.w));
  }

  float4* const values_;
  const std::uint32_t stride_;
  float max_[2] = {};
  float sum_[2] = {};
};

// The stage whose first key is at `position`.
template <std::uint32_t kDim>
__device__ __forceinline__ void attend_stage(PartState<kDim>& state, const Queries<kDim>& q,
                                             const StageLoader<kDim>& loader, std::uint32_t stage,
                                             std::uint32_t position, const TileSpans& spans,
                                             float scale_log2) {
#pragma unroll 1
  for (std::uint32_t key = 0; key < StageLoader<kDim>::kKeys; key += kSoftmaxTile) {
    const std::uint32_t tile = position + key;
    if (!spans.any.meets(tile, tile + kSoftmaxTile)) continue;
    const std::uint32_t from = key * TensorGeometry<kDim>::kRowBytes;
    const bool partial = is_partial(spans, tile);
    TileScores scores;
    TileWeights weights;
    score_tile(q, loader.keys(stage) + from, scores);
    weigh_tile(state, scores, scale_log2, spans, tile, partial, weights);
    take_values(state, weights, loader.values(stage) + from, spans, tile, partial);
  }
}

// The rows of a block: tile `warp` of them belongs to that warp.
template <std::uint32_t kDim>
__device__ __forceinline__ void attend_rows(const AttentionArgs& a, std::uint32_t seq, const RowTile& tile,
                                            const Span& seen, std::byte* shared, std::uint32_t* ids) {
  using Geometry = TensorGeometry<kDim>;
  constexpr std::uint32_t kKeys = Geometry::kStageKeys;
  static_assert(kPartTokens % kKeys == 0);
  const std::uint32_t warp = threadIdx.x / kWarp;
  std::byte* own = shared + Geometry::kPrefillBytes + warp * Geometry::kPrefillWarpBytes;
  const StageLoader<kDim> loader(a, HeadBlocks(a, seq), tile.kv_head, shared_address(shared), ids, seen);
  const std::uint32_t begin = seen.begin / kKeys * kKeys;
  __syncthreads();  // everyone is done with the stages of the item before
  loader.ask_ids(0, begin);
  close_copies();
  const TileSpans spans(a, tile);
  const Queries<kDim> q(a, tile, shared_address(own) + Geometry::kPrefillWarpBytes - Geometry::kQueryBytes);
  wait_copies<0>();
  __syncthreads();
  loader.ask_tokens(0, begin);
  loader.ask_ids(1, begin + kKeys);
  close_copies();
  const float scale_log2 = a.scale * kLog2E;
  auto* const values = reinterpret_cast<float4*>(own) + threadIdx.x % kWarp;
  float4 local[Geometry::kTotalsInShared ? 1 : kDim / 8];
  Totals<kDim> of_split(values, kWarp);
  Totals<kDim> totals(Geometry::kTotalsInShared ? values + Geometry::kValuesBytes / sizeof(float4) : local,
                      Geometry::kTotalsInShared ? kWarp : 1);
  PartState<kDim> state;
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
    attend_stage(state, q, loader, stage, position, spans, scale_log2);
    const bool is_last = next >= seen.end;
    const std::uint32_t split = position / kAttentionSplitTokens * kAttentionSplitTokens;
    const std::uint32_t part = position / kPartTokens * kPartTokens;
    if ((is_last || next % kPartTokens == 0) && spans.any.meets(part, part + kPartTokens)) {
      of_split.add(Taking(spans, split, part, kPartTokens), state);
      state.clear();
    }
    if ((is_last || next % kAttentionSplitTokens == 0) &&
        spans.any.meets(split, split + kAttentionSplitTokens)) {
      totals.add(Taking(spans, 0, split, kAttentionSplitTokens), of_split);
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
