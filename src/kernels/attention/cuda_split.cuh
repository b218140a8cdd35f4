// SPDX-License-Identifier: Apache-2.0
// Attention by splits on tensor cores (decode): a warp takes 16 rows of a sequence, a KV head and one split,
// with a ring of tiles of its own, and leaves the result in the workspace.
#pragma once

#include "kernels/attention/cuda_tensor.cuh"

namespace metrale::kernels::device {

// Asks for the tiles of keys and values of one item in turn, some ahead of their use.
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

template <std::uint32_t kDim>
__device__ __forceinline__ void write_split(const AttentionArgs& a, const RowTile& tile,
                                            const TileSpans& spans, std::uint32_t split,
                                            const SplitState<kDim>& state) {
  const unsigned lane = threadIdx.x % kWarp;
  const std::uint32_t start = split * kAttentionSplitTokens;
  const bool pairs = a.workspace % 8 == 0;
#pragma unroll
  for (std::uint32_t i = 0; i < 2; ++i) {
    const float sum = state.row_sum(static_cast<int>(i));
    if (!spans.own[i].meets(start, start + kAttentionSplitTokens)) continue;
    const std::uint32_t row = lane / 4 + 8 * i;
    float* to = workspace_row(a, tile.seq.first_row + tile.query(a, row), tile.head(a, row), split);
    if (lane % 4 == 0) {
      to[0] = state.max[i];
      to[1] = sum;
    }
#pragma unroll
    for (std::uint32_t n = 0; n < kDim / 8; ++n) {
      const std::uint32_t column = n * 8 + lane % 4 * 2;
      if (column >= a.head_dim) continue;
      if (pairs) {
        *reinterpret_cast<float2*>(to + 2 + column) =
            make_float2(state.values[n][i * 2], state.values[n][i * 2 + 1]);
      } else {
        to[2 + column] = state.values[n][i * 2];
        to[3 + column] = state.values[n][i * 2 + 1];
      }
    }
  }
}

template <std::uint32_t kDim>
__device__ __forceinline__ void attend_split(const AttentionArgs& a, std::uint32_t seq, const RowTile& tile,
                                             std::uint32_t split, std::uint32_t room) {
  const std::uint32_t start = split * kAttentionSplitTokens;
  const TileSpans spans(a, tile);
  if (!spans.any.meets(start, start + kAttentionSplitTokens)) return;
  const std::uint32_t begin = max(spans.any.begin, start) / kSoftmaxTile;
  const std::uint32_t end =
      (min(spans.any.end, start + kAttentionSplitTokens) + kSoftmaxTile - 1) / kSoftmaxTile;
  const float scale_log2 = a.scale * kLog2E;
  __syncwarp();  // everyone is done with the tiles of the item before
  TileRing<kDim> ring(a, HeadBlocks(a, seq), tile.kv_head, room, spans.any, begin, end);
  const Queries<kDim> q(a, tile, room + TensorGeometry<kDim>::kRingTiles * TensorGeometry<kDim>::kTileBytes);
  SplitState<kDim> state;
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
  write_split(a, tile, spans, split, state);
}

// A warp for each (sequence, 16 rows, split, KV head); neighbouring warps read neighbouring stripes.
template <std::uint32_t kDim>
__device__ __forceinline__ void split_kernel(const AttentionArgs& a, std::byte* shared) {
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t room = shared_address(shared) + warp * TensorGeometry<kDim>::kSplitWarpBytes;
  const auto count = [&](const Sequence& s) -> std::uint32_t {
    if (s.queries == 0 || !is_split(a, s)) return 0;
    const Span splits = splits_of(a, s);
    const std::uint32_t tiles = (s.queries * group_heads(a) + kTileRows - 1) / kTileRows;
    return tiles * a.num_kv_heads * (splits.end - splits.begin);
  };
  const auto work = [&](std::uint32_t seq, const Sequence& s, std::uint32_t item) {
    const Span splits = splits_of(a, s);
    const std::uint32_t head = item % a.num_kv_heads;
    const std::uint32_t rest = item / a.num_kv_heads;
    const std::uint32_t split = splits.begin + rest % (splits.end - splits.begin);
    const std::uint32_t tile = rest / (splits.end - splits.begin);
    attend_split<kDim>(a, seq, RowTile(a, s, head, tile * kTileRows), split, room);
  };
  for_items(a, warp * gridDim.x + blockIdx.x, gridDim.x * (blockDim.x / kWarp), count, work);
}

}  // namespace metrale::kernels::device
