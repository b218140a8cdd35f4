// SPDX-License-Identifier: Apache-2.0
// Attention for every type, pair of formats and head_dim, in plain FP32: a warp for each row, the rows of a
// block share tiles of 32 keys that are widened into shared memory. Decode and prefill rows go through the
// same code, so they get the same bits.
#pragma once

#include "kernels/attention/cuda_work.cuh"

namespace metrale::kernels::device {

constexpr std::uint32_t kLaneDims = kAttentionMaxHeadDim / kWarp;  // lane l holds dimensions l, l + 32, …

// A row over the keys of a part, a split or all: maximum (times log2 e), sum and weighted values.
struct RowState {
  float values[kLaneDims];
  float max;
  float sum;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& value : values) value = 0;
    max = minus_infinity();
    sum = 0;
  }
};

// Folds the next part or split into what came before; the first one is the result as it is.
__device__ __forceinline__ void take_next(RowState& total, const RowState& next, bool is_first) {
  if (is_first) {
    total = next;
    return;
  }
  const Fold factors = fold(total.max, total.sum, next.max, next.sum);
#pragma unroll
  for (std::uint32_t k = 0; k < kLaneDims; ++k) {
    total.values[k] = fold_value(factors, total.values[k], next.values[k]);
  }
}

// Rows [first, first + 8) of one sequence and KV head; row `warp` of them belongs to that warp.
struct BlockRows {
  Sequence seq;
  Span seen;  // what some row of the block sees
  Span own;   // what this warp's row sees; empty where there is none
  std::uint32_t kv_head;
  std::uint32_t row = 0;   // of the step
  std::uint32_t head = 0;  // query head

  __device__ BlockRows(const AttentionArgs& a, const Sequence& of, std::uint32_t of_head, std::uint32_t first)
      : seq(of), kv_head(of_head) {
    const std::uint32_t group = group_heads(a);
    const std::uint32_t last = min(first + kGenericRows, of.queries * group) - 1;
    seen = {visible(a, of.position(first / group)).begin, of.position(last / group) + 1};
    const std::uint32_t mine = first + threadIdx.x / kWarp;
    if (mine > last) return;
    own = visible(a, of.position(mine / group));
    row = of.first_row + mine / group;
    head = of_head * group + mine % group;
  }
  [[nodiscard]] __device__ bool exists() const { return own.end != 0; }
};

__device__ __forceinline__ ElementType element_type(quant::KvFormat format) {
  return format == quant::KvFormat::kBf16 ? ElementType::kBf16 : ElementType::kF32;
}

// Shared memory: queries [8][head_dim], then a tile [32][generic_row_floats].
class GenericBlock {
 public:
  __device__ GenericBlock(const AttentionArgs& a, std::uint32_t seq, const BlockRows& rows, float* shared)
      : a_(a),
        rows_(rows),
        blocks_(a, seq),
        keys_(a, a.k_pool, a.k_format == quant::KvFormat::kBf16 ? 2 : 4, rows.kv_head),
        values_(a, a.v_pool, a.v_format == quant::KvFormat::kBf16 ? 2 : 4, rows.kv_head),
        query_(shared + threadIdx.x / kWarp * a.head_dim),
        tile_(shared + kGenericRows * a.head_dim),
        tile_stride_(generic_row_floats(a.head_dim)),
        lane_(threadIdx.x % kWarp),
        scale_log2_(a.scale * kLog2E) {
    const std::uint64_t at = std::uint64_t{rows.row} * a.q_stride + std::uint64_t{rows.head} * a.head_dim;
    for (std::uint32_t i = lane_; i < a.head_dim; i += kWarp) {
      query_[i] = rows.exists() ? load(a.type, a.q, at + i) : 0.0F;
    }
    __syncwarp();
  }

  // The split that starts at `start`: its parts, folded in order. All threads of the block call it.
  __device__ void attend_split(std::uint32_t start, RowState& split) const {
    split.clear();
    for (std::uint32_t part = start; part < start + kAttentionSplitTokens; part += kPartTokens) {
      if (!rows_.seen.meets(part, part + kPartTokens)) continue;
      RowState state;
      attend_part(part, state);
      if (!rows_.own.meets(part, part + kPartTokens)) continue;
      take_next(split, state, max(rows_.own.begin, start) >= part);
    }
  }

 private:
  // The keys of the part that starts at `start`.
  __device__ void attend_part(std::uint32_t start, RowState& state) const {
    state.clear();
    const std::uint32_t end = min(rows_.seen.end, start + kPartTokens);
    std::uint32_t tile = max(rows_.seen.begin, start) / kSoftmaxTile * kSoftmaxTile;
    for (; tile < end; tile += kSoftmaxTile) {
      __syncthreads();  // everyone is done with the tile before
      load_tile(keys_, element_type(a_.k_format), tile);
      __syncthreads();
      const float weight = weigh(tile, state);
      __syncthreads();
      load_tile(values_, element_type(a_.v_format), tile);
      __syncthreads();
      add_values(tile, weight, state);
    }
  }

  [[nodiscard]] __device__ bool sees(std::uint32_t key) const {
    return key >= rows_.own.begin && key < rows_.own.end;
  }

  __device__ void load_tile(const HeadStripes& side, ElementType type, std::uint32_t tile) const {
    for (std::uint32_t key = threadIdx.x / kWarp; key < kSoftmaxTile; key += blockDim.x / kWarp) {
      const std::uint32_t position = tile + key;
      float* to = tile_ + key * tile_stride_;
      if (!is_read(rows_.seen, position)) {
        for (std::uint32_t i = lane_; i < a_.head_dim; i += kWarp) to[i] = 0;
        continue;
      }
      const std::uint32_t block = blocks_.table[position / blocks_.block_size];
      const auto from = reinterpret_cast<std::uint64_t>(side.stripes) +
                        static_cast<std::uint64_t>(side.offset(block, position % blocks_.block_size));
      for (std::uint32_t i = lane_; i < a_.head_dim; i += kWarp) to[i] = load(type, from, i);
    }
  }

  // This lane's weight: that of key `lane` of the tile.
  __device__ float weigh(std::uint32_t tile, RowState& state) const {
    const bool seen = sees(tile + lane_);
    if (__any_sync(kFullWarp, seen) == 0) return 0;
    const float* key = tile_ + lane_ * tile_stride_;
    float dot = 0;
    for (std::uint32_t i = 0; i < a_.head_dim; ++i) dot = fmaf(query_[i], key[i], dot);
    const float score = seen ? dot * scale_log2_ : minus_infinity();
    float larger = fmaxf(state.max, score);
    for (unsigned step = kWarp / 2; step != 0; step /= 2) {
      larger = fmaxf(larger, __shfl_xor_sync(kFullWarp, larger, step));
    }
    const float base = exponent_base(larger);
    const float keep = exp2_fast(state.max - base);
    const float weight = exp2_fast(score - base);
    state.max = larger;
    state.sum = fmaf(state.sum, keep, warp_sum(weight));
#pragma unroll
    for (float& value : state.values) value *= keep;
    return weight;
  }

  __device__ void add_values(std::uint32_t tile, float weight, RowState& state) const {
    const std::uint32_t seen = __ballot_sync(kFullWarp, sees(tile + lane_));
    for (std::uint32_t key = 0; key < kSoftmaxTile; ++key) {
      if ((seen >> key & 1U) == 0) continue;
      const float factor = __shfl_sync(kFullWarp, weight, static_cast<int>(key));
      const float* value = tile_ + key * tile_stride_;
#pragma unroll
      for (std::uint32_t k = 0; k < kLaneDims; ++k) {
        const std::uint32_t dim = k * kWarp + lane_;
        if (dim < a_.head_dim) state.values[k] = fmaf(factor, value[dim], state.values[k]);
      }
    }
  }

  const AttentionArgs& a_;
  const BlockRows& rows_;
  const HeadBlocks blocks_;
  const HeadStripes keys_;
  const HeadStripes values_;
  float* const query_;
  float* const tile_;
  const std::uint32_t tile_stride_;
  const std::uint32_t lane_;
  const float scale_log2_;
};

// A block for each (sequence, 8 rows, split, KV head).
__device__ __forceinline__ void generic_split_kernel(const AttentionArgs& a, float* shared) {
  const auto count = [&](const Sequence& s) -> std::uint32_t {
    if (s.queries == 0 || !is_split(a, s)) return 0;
    const Span splits = splits_of(a, s);
    const std::uint32_t tiles = (s.queries * group_heads(a) + kGenericRows - 1) / kGenericRows;
    return tiles * a.num_kv_heads * (splits.end - splits.begin);
  };
  const auto work = [&](std::uint32_t seq, const Sequence& s, std::uint32_t item) {
    const Span splits = splits_of(a, s);
    const std::uint32_t rest = item / a.num_kv_heads;
    const std::uint32_t split = splits.begin + rest % (splits.end - splits.begin);
    const std::uint32_t first = rest / (splits.end - splits.begin) * kGenericRows;
    const std::uint32_t start = split * kAttentionSplitTokens;
    const BlockRows rows(a, s, item % a.num_kv_heads, first);
    if (!rows.seen.meets(start, start + kAttentionSplitTokens)) return;
    RowState state;
    GenericBlock(a, seq, rows, shared).attend_split(start, state);
    if (!rows.own.meets(start, start + kAttentionSplitTokens)) return;
    float* to = workspace_row(a, rows.row, rows.head, split);
    const std::uint32_t lane = threadIdx.x % kWarp;
    if (lane == 0) {
      to[0] = state.max;
      to[1] = state.sum;
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kLaneDims; ++k) {
      if (k * kWarp + lane < a.head_dim) to[2 + k * kWarp + lane] = state.values[k];
    }
  };
  for_items(a, blockIdx.x, gridDim.x, count, work);
}

// All splits of a block's rows, folded as they come.
__device__ __forceinline__ void generic_rows(const AttentionArgs& a, std::uint32_t seq, const BlockRows& rows,
                                             float* shared) {
  const GenericBlock block(a, seq, rows, shared);
  RowState total;
  total.clear();
  std::uint32_t start = rows.seen.begin / kAttentionSplitTokens * kAttentionSplitTokens;
  for (; start < rows.seen.end; start += kAttentionSplitTokens) {
    RowState state;
    block.attend_split(start, state);
    if (!rows.own.meets(start, start + kAttentionSplitTokens)) continue;
    take_next(total, state, rows.own.begin >= start);
  }
  if (!rows.exists()) return;
  const std::uint64_t at = std::uint64_t{rows.row} * a.out_stride + std::uint64_t{rows.head} * a.head_dim;
  const std::uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
  for (std::uint32_t k = 0; k < kLaneDims; ++k) {
    const std::uint32_t dim = k * kWarp + lane;
    if (dim < a.head_dim) store(a.type, a.out, at + dim, total.values[k] / total.sum);
  }
}

// A block for each (sequence, 8 rows, KV head), the last rows first: they see most.
__device__ __forceinline__ void generic_prefill_kernel(const AttentionArgs& a, float* shared) {
  const auto blocks_of = [&](const Sequence& s) {
    return (s.queries * group_heads(a) + kGenericRows - 1) / kGenericRows;
  };
  const auto count = [&](const Sequence& s) -> std::uint32_t {
    return s.queries == 0 || is_split(a, s) ? 0 : blocks_of(s) * a.num_kv_heads;
  };
  const auto work = [&](std::uint32_t seq, const Sequence& s, std::uint32_t item) {
    const std::uint32_t first = (blocks_of(s) - 1 - item / a.num_kv_heads) * kGenericRows;
    generic_rows(a, seq, BlockRows(a, s, item % a.num_kv_heads, first), shared);
  };
  for_items(a, blockIdx.x, gridDim.x, count, work);
}

}  // namespace metrale::kernels::device
