// SPDX-License-Identifier: Apache-2.0
#include <metrale/base/checked.h>
#include <metrale/kernels/attention.h>

#include "kernels/attention/check.h"
#include "kernels/attention/levels.h"
#include "kernels/attention/query_tiles.h"
#include "kernels/attention/split.h"
#include "kernels/host_args.h"
#include "kernels/register.h"

namespace metrale::kernels {
namespace {

[[nodiscard]] std::size_t padded_head_dim(const AttentionArgs& args) {
  return round_up(std::size_t{args.head_dim}, std::size_t{16});
}

// Scratch of one thread for tiles of up to `rows` rows.
class Scratch {
 public:
  void reserve(std::size_t rows, std::size_t padded_dim) {
    const std::size_t state = rows * (padded_dim + std::size_t{2} * 16);
    const std::size_t levels_floats = levels::tile_bytes(padded_dim) / sizeof(float);
    const std::size_t rounded_floats = rows * (padded_dim + 1 + levels::kMostRecords);
    const std::size_t floats =
        rows * padded_dim + rounded_floats + rows * (kAttentionSplitTokens + kKeyTile + kKeyTile / 2 + 1) +
        std::size_t{2} * kKeyTile * padded_dim + levels_floats + 2 * state + 2 * rows + std::size_t{16} * 22;
    runs_.reserve(floats);
    q = runs_.take(rows * padded_dim);
    scores = runs_.take(rows * kAttentionSplitTokens);
    tile = runs_.take(kKeyTile * padded_dim);
    copies = reinterpret_cast<std::byte*>(runs_.take(kKeyTile * padded_dim));
    levels = reinterpret_cast<std::byte*>(runs_.take(levels_floats));
    weights = runs_.take(rows * kKeyTile);
    rounded_weights.whole = reinterpret_cast<std::int16_t*>(runs_.take(rows * kKeyTile / 2));
    rounded_weights.factors = runs_.take(rows);
    rounded.stride = padded_dim;
    rounded.whole = reinterpret_cast<std::int16_t*>(runs_.take(rows * padded_dim / 2));
    rounded.upper = reinterpret_cast<std::int8_t*>(runs_.take(rows * padded_dim / 4));
    rounded.lower = reinterpret_cast<std::int8_t*>(runs_.take(rows * padded_dim / 4));
    rounded.sums = reinterpret_cast<std::int32_t*>(runs_.take(rows * levels::kMostRecords));
    rounded.factors = runs_.take(rows);
    fold.take(runs_, rows, padded_dim);
  }

  float* q = nullptr;
  float* scores = nullptr;
  float* tile = nullptr;
  FoldState fold;
  std::byte* copies = nullptr;
  std::byte* levels = nullptr;
  float* weights = nullptr;
  levels::RoundedWeights rounded_weights;
  levels::Queries rounded;

 private:
  ScratchRuns runs_;
};

Scratch& thread_scratch(std::size_t rows, std::size_t padded_dim) {
  thread_local Scratch scratch;
  scratch.reserve(rows, padded_dim);
  return scratch;
}

// One KV head of one query tile.
class TileHead final : public TileRows {
 public:
  TileHead(const AttentionArgs& args, const QueryRows& step, const QueryTile& tile, std::uint32_t kv_head,
           Scratch& scratch)
      : TileRows(step, tile, kv_head, scratch.fold),
        args_(args),
        kv_head_(kv_head),
        padded_(padded_head_dim(args)),
        scratch_(scratch) {}

 private:
  void do_load_queries() override {
    const auto* q = host_ptr<const std::byte>(args_.q);
    for (std::size_t row = 0; row < rows(); ++row) {
      const std::size_t at = token(row) * args_.q_stride + head(row) * args_.head_dim;
      load_row(args_.type, q + at * quant::element_bytes(args_.type), args_.head_dim,
               scratch_.q + row * padded_);
    }
    if (!levels::takes_keys(args_.k_format)) return;
    for (std::size_t row = 0; row < rows(); ++row) {
      round_row(args_.k_format, args_.scale, scratch_.q + row * padded_, args_.head_dim, row,
                scratch_.rounded);
    }
  }

  [[nodiscard]] HeadSide side(quant::KvFormat format, std::uint64_t pool, std::uint64_t scales) const {
    const std::uint32_t table_row = host_ptr<const std::uint32_t>(args_.table_rows)[tile().seq];
    return {.format = format,
            .stripes = host_ptr<const std::byte>(pool) +
                       quant::kv_codes_offset(format, args_.block_size, args_.head_dim, kv_head_, 0),
            .block_bytes = quant::kv_side_bytes(format, args_.block_size, args_.num_kv_heads, args_.head_dim),
            .row_bytes = quant::kv_row_bytes(format, args_.head_dim),
            .header_bytes = quant::kv_header_bytes(format, args_.head_dim),
            .scale = scales == 0 ? 1.0F : host_ptr<const float>(scales)[kv_head_],
            .table = host_ptr<const std::uint32_t>(args_.block_tables) +
                     std::size_t{table_row} * args_.table_stride,
            .block_size = args_.block_size,
            .copies = scratch_.copies};
  }

  void do_attend(std::uint32_t split, std::uint32_t next_keys, const SoftmaxState& result) override {
    attend_split({.rows = rows(),
                  .head_dim = args_.head_dim,
                  .padded_dim = padded_,
                  .scale = args_.scale,
                  .keys = side(args_.k_format, args_.k_pool, args_.k_scales),
                  .values = side(args_.v_format, args_.v_pool, args_.v_scales),
                  .start = split * kAttentionSplitTokens,
                  .next_keys = next_keys,
                  .q = scratch_.q,
                  .rounded = scratch_.rounded,
                  .ranges = ranges(),
                  .scores = scratch_.scores,
                  .tile = scratch_.tile,
                  .levels = scratch_.levels,
                  .weights = scratch_.weights,
                  .rounded_weights = scratch_.rounded_weights,
                  .result = result});
  }

  const AttentionArgs& args_;
  const std::uint32_t kv_head_;
  const std::size_t padded_;
  Scratch& scratch_;
};

void paged_attention(ThreadPool& pool, const AttentionArgs& args) {
  check_attention(args);
  const QueryRows step{.kernel = "paged_attention",
                       .counts = args.counts,
                       .query_starts = args.query_starts,
                       .context_lens = args.context_lens,
                       .out = args.out,
                       .workspace = args.workspace,
                       .max_context = std::uint64_t{args.table_stride} * args.block_size,
                       .max_tokens = args.max_tokens,
                       .max_seqs = args.max_seqs,
                       .workspace_rows = args.workspace_rows,
                       .window = args.window,
                       .num_heads = args.num_q_heads,
                       .tile_heads = args.num_q_heads / args.num_kv_heads,
                       .value_dim = args.head_dim,
                       .out_stride = args.out_stride,
                       .type = args.type};
  attend_step(pool, step, [&](const QueryTile& tile, std::uint32_t kv_head) {
    Scratch& scratch = thread_scratch(rows_in(step, tile, kv_head), padded_head_dim(args));
    return TileHead(args, step, tile, kv_head, scratch);
  });
}

}  // namespace

void register_attention(gpu::CpuKernelTable& table) {
  table.add<paged_attention>(kPagedAttention);
}

}  // namespace metrale::kernels
