// SPDX-License-Identifier: Apache-2.0
// Attention by splits on tensor cores (decode): a block takes 16 rows of a sequence, a KV head and one split,
// each warp of it a part of the split with a ring of tiles of its own. The parts meet in shared memory, and
// their fold goes to the workspace.
#pragma once

#include "kernels/attention/cuda_tensor.cuh"

namespace metrale::kernels::device {

// Asks for the tiles of keys and values of one part in turn, some ahead of their use.
template <std::uint32_t kDim>
class TileRing {
 public:
  using Geometry = TensorGeometry<kDim>;

  // Tiles [begin, end), counted in tiles from position 0, as `seen` (what some row sees) tells.
  __device__ TileRing(const AttentionArgs& a, const HeadBlocks& blocks, std::uint32_t kv_head,
                      std::uint32_t room, const Span& seen, std::uint32_t begin, std::uint32_t end)
      : keys_(a, a.k_pool, 2, kv_head),
        values_(a, a.v_pool, 2, kv_head),
        blocks_(blocks),
        seen_(seen),
        room_(room),
        head_dim_(a.head_dim),
        next_tile_(begin),
        end_tile_(end) {
    look_up();
#pragma unroll
    for (std::uint32_t i = 0; i + 1 < Geometry::kRingTiles; ++i) ask();
  }

  // The next tile, keys and values in turn; the one before it is given up.
  __device__ std::uint32_t take() {
    wait_copies<static_cast<int>(Geometry::kRingTiles) - 2>();
    __syncwarp();  // everyone's copies are there, and everyone is done with the tile before
    ask();
    const std::uint32_t tile = room_ + taken_ * Geometry::kTileBytes;
    taken_ = taken_ + 1 == Geometry::kRingTiles ? 0 : taken_ + 1;
    return tile;
  }

 private:
  // This lane's key of the next tile: where its block is, one tile before that is needed.
  __device__ void look_up() {
    position_ = next_tile_ * kSoftmaxTile + threadIdx.x % kWarp;
    reads_ = next_tile_ < end_tile_ && is_read(seen_, position_);
    block_ = reads_ ? blocks_.table[position_ / blocks_.block_size] : 0;
  }

  __device__ void ask() {
    if (next_tile_ < end_tile_ || values_due_) {
      if (!values_due_) {
        offset_ = reads_ ? keys_.offset(block_, position_ % blocks_.block_size) : -1;
        ++next_tile_;
        look_up();
      }
      const std::uint32_t to = room_ + asked_ * Geometry::kTileBytes;
      const std::byte* stripes = values_due_ ? values_.stripes : keys_.stripes;
      copy_tokens<kDim>(to, 0, stripes, offset_, 0, head_dim_);
      copy_tokens<kDim>(to, 16, stripes, offset_, 16, head_dim_);
      values_due_ = !values_due_;
      asked_ = asked_ + 1 == Geometry::kRingTiles ? 0 : asked_ + 1;
    }
    close_copies();
  }

  const HeadStripes keys_;
  const HeadStripes values_;
  const HeadBlocks blocks_;
  const Span seen_;
  const std::uint32_t room_;
  const std::uint32_t head_dim_;
  std::uint32_t next_tile_;
  const std::uint32_t end_tile_;
  std::uint32_t position_ = 0;
  std::uint32_t block_ = 0;
  bool reads_ = false;
  bool values_due_ = false;
  std::int64_t offset_ = -1;  // the same for keys and values: one format
  std::uint32_t asked_ = 0;
  std::uint32_t taken_ = 0;
};

// The state of a part, for all warps of the block.
template <std::uint32_t kDim>
__device__ __forceinline__ void leave_part(float* room, const PartState<kDim>& state) {
  using Geometry = TensorGeometry<kDim>;
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (std::uint32_t i = 0; i < 2; ++i) {
    const std::uint32_t row = lane / 4 + 8 * i;
    const float sum = state.row_sum(static_cast<int>(i));
    if (lane % 4 == 0) {
      room[Geometry::kPartMaxima + row] = state.max[i];
      room[Geometry::kPartSums + row] = sum;
    }
    float* to = room + row * Geometry::kPartRowFloats + lane % 4 * 2;
#pragma unroll
    for (std::uint32_t n = 0; n < kDim / 8; ++n) {
      *reinterpret_cast<float2*>(to + n * 8) =
          make_float2(state.values[n][i * 2], state.values[n][i * 2 + 1]);
    }
  }
}

// A warp's part, which starts at `start` and of which some row sees a key: left where the warp's ring was.
template <std::uint32_t kDim>
__device__ __forceinline__ void attend_part(const AttentionArgs& a, std::uint32_t seq, const RowTile& tile,
                                            const TileSpans& spans, std::uint32_t start, std::byte* own) {
  using Geometry = TensorGeometry<kDim>;
  const std::uint32_t begin = max(spans.any.begin, start) / kSoftmaxTile;
  const std::uint32_t end = (min(spans.any.end, start + kPartTokens) + kSoftmaxTile - 1) / kSoftmaxTile;
  const float scale_log2 = a.scale * kLog2E;
  const std::uint32_t room = shared_address(own);
  TileRing<kDim> ring(a, HeadBlocks(a, seq), tile.kv_head, room, spans.any, begin, end);
  const Queries<kDim> q(a, tile, room + Geometry::kRingTiles * Geometry::kTileBytes);
  PartState<kDim> state;
  state.clear();
  for (std::uint32_t at = begin; at < end; ++at) {
    const std::uint32_t position = at * kSoftmaxTile;
    const bool partial = is_partial(spans, position);
    TileScores scores;
    TileWeights weights;
    score_tile(q, ring.take(), scores);
    weigh_tile(state, scores, scale_log2, spans, position, partial, weights);
    take_values(state, weights, ring.take(), spans, position, partial);
  }
  wait_copies<0>();
  __syncwarp();  // everyone is done with the ring
  leave_part(reinterpret_cast<float*>(own), state);
}

// Folds what the block's warps left of row `row`, in order, into the split's result; the first of their parts
// starts at `start`. The whole warp calls it, and the same warp for every part of the row.
template <std::uint32_t kDim>
__device__ __forceinline__ void fold_row(const AttentionArgs& a, const RowTile& tile, std::uint32_t row,
                                         std::uint32_t start, const std::byte* shared) {
  using Geometry = TensorGeometry<kDim>;
  const Span span = tile.span(a, row);
  const std::uint32_t parts = blockDim.x / kWarp;
  if (!span.meets(start, start + parts * kPartTokens)) return;
  const bool resumes = start % kAttentionSplitTokens != 0 && span.begin < start;
  const std::uint32_t begin = span.begin > start ? (span.begin - start) / kPartTokens : 0;
  const std::uint32_t end = min(parts, (span.end - start + kPartTokens - 1) / kPartTokens);
  const auto part = [&](std::uint32_t i) {
    return reinterpret_cast<const float*>(shared + i * Geometry::kSplitWarpBytes);
  };
  float* to = workspace_row(a, tile.seq.first_row + tile.query(a, row), tile.head(a, row),
                            start / kAttentionSplitTokens);
  const std::uint32_t next = resumes ? begin : begin + 1;  // the first that is folded in
  float max = resumes ? to[0] : part(begin)[Geometry::kPartMaxima + row];
  float sum = resumes ? to[1] : part(begin)[Geometry::kPartSums + row];
  Fold factors[kSplitParts] = {};
#pragma unroll
  for (std::uint32_t i = 0; i < kSplitParts; ++i) {
    if (i < next || i >= end) continue;
    factors[i] = fold(max, sum, part(i)[Geometry::kPartMaxima + row], part(i)[Geometry::kPartSums + row]);
  }
  __syncwarp();  // everyone has what the result was
  const unsigned lane = threadIdx.x % kWarp;
  if (lane == 0) {
    to[0] = max;
    to[1] = sum;
  }
  for (std::uint32_t dim = lane; dim < a.head_dim; dim += kWarp) {
    const std::uint32_t at = row * Geometry::kPartRowFloats + dim;
    float total = resumes ? to[2 + dim] : part(begin)[at];
#pragma unroll
    for (std::uint32_t i = 0; i < kSplitParts; ++i) {
      if (i >= next && i < end) total = fold_value(factors[i], total, part(i)[at]);
    }
    to[2 + dim] = total;
  }
}

// One split: each warp of the block takes a part, and then some rows of what all have left. Of fewer warps
// than parts each takes several.
template <std::uint32_t kDim>
__device__ __forceinline__ void attend_split(const AttentionArgs& a, std::uint32_t seq, const RowTile& tile,
                                             std::uint32_t split, std::byte* shared) {
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t warps = blockDim.x / kWarp;
  const TileSpans spans(a, tile);
  const std::uint32_t stop = (split + 1) * kAttentionSplitTokens;
#pragma unroll 1
  for (std::uint32_t at = split * kAttentionSplitTokens; at < stop; at += warps * kPartTokens) {
    if (!spans.any.meets(at, at + warps * kPartTokens)) continue;
    const std::uint32_t start = at + warp * kPartTokens;
    __syncthreads();  // everyone is done with the parts before
    if (spans.any.meets(start, start + kPartTokens)) {
      attend_part<kDim>(a, seq, tile, spans, start, shared + warp * TensorGeometry<kDim>::kSplitWarpBytes);
    }
    __syncthreads();
    for (std::uint32_t row = warp; row < tile.count; row += warps) fold_row<kDim>(a, tile, row, at, shared);
  }
}

// A block for each (sequence, 16 rows, split, KV head); neighbouring blocks read neighbouring stripes. The
// number of its warps divides kSplitParts.
template <std::uint32_t kDim>
__device__ __forceinline__ void split_kernel(const AttentionArgs& a, std::byte* shared) {
  const auto count = [&](const Sequence& s) -> std::uint32_t {
    if (s.queries == 0 || !is_split(a, s)) return 0;
    const Span splits = splits_of(a, s);
    const std::uint32_t tiles = (s.queries * group_heads(a) + kTileRows - 1) / kTileRows;
    return tiles * a.num_kv_heads * (splits.end - splits.begin);
  };
  const auto work = [&](std::uint32_t seq, const Sequence& s, std::uint32_t item) {
    // The last split, which may be short, comes last: what does not fill the device is over soon.
    const std::uint32_t tiles = (s.queries * group_heads(a) + kTileRows - 1) / kTileRows;
    const std::uint32_t head = item % a.num_kv_heads;
    const std::uint32_t rest = item / a.num_kv_heads;
    const std::uint32_t tile = rest % tiles;
    const std::uint32_t split = splits_of(a, s).begin + rest / tiles;
    attend_split<kDim>(a, seq, RowTile(a, s, head, tile * kTileRows), split, shared);
  };
  for_items(a, blockIdx.x, gridDim.x, count, work);
}

}  // namespace metrale::kernels::device
