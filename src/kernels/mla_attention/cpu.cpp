// SPDX-License-Identifier: Apache-2.0
#include <metrale/base/checked.h>
#include <metrale/kernels/mla_attention.h>

#include "kernels/attention/query_tiles.h"
#include "kernels/host_args.h"
#include "kernels/mla_attention/args.h"
#include "kernels/mla_attention/split.h"
#include "kernels/register.h"

namespace metrale::kernels {
namespace {

// Scratch of one thread for tiles of up to `rows` rows.
class MlaScratch {
 public:
  void reserve(std::size_t rows, std::size_t latent_dim, std::size_t rope_dim) {
    const std::size_t width = latent_dim + rope_dim;
    const std::size_t floats = rows * (width + kAttentionSplitTokens + 2 * (latent_dim + 2) + 2) + kKeyTile +
                               kAttentionSplitTokens * latent_dim + kKeyTile * (rope_dim + width) +
                               std::size_t{16} * 16;  // what rounding the pieces up adds
    runs_.reserve(floats);
    q = runs_.take(rows * width);
    scores = runs_.take(rows * kAttentionSplitTokens + kKeyTile);
    read = runs_.take(kAttentionSplitTokens * latent_dim);
    read_ropes = runs_.take(kKeyTile * rope_dim);
    tile = runs_.take(kKeyTile * width);
    fold.take(runs_, rows, latent_dim);
  }

  float* q = nullptr;
  float* scores = nullptr;
  float* read = nullptr;
  float* read_ropes = nullptr;
  float* tile = nullptr;
  FoldState fold;

 private:
  ScratchRuns runs_;
};

MlaScratch& thread_scratch(std::size_t rows, const MlaAttentionArgs& args) {
  thread_local MlaScratch scratch;
  scratch.reserve(rows, args.latent_dim, args.rope_dim);
  return scratch;
}

// Some heads of one query tile.
class MlaTile final : public TileRows {
 public:
  MlaTile(const MlaAttentionArgs& args, const QueryRows& step, const QueryTile& tile, std::uint32_t group,
          const MlaScratch& scratch)
      : TileRows(step, tile, group, scratch.fold), args_(args), scratch_(scratch) {}

 private:
  void do_load_queries() override {
    const std::size_t bytes = quant::element_bytes(args_.type);
    const auto* latents = host_ptr<const std::byte>(args_.q_latent);
    const auto* ropes = host_ptr<const std::byte>(args_.q_rope);
    float* to = scratch_.q;
    for (std::size_t row = 0; row < rows(); ++row, to += args_.latent_dim + args_.rope_dim) {
      const std::size_t latent = token(row) * args_.q_latent_stride + head(row) * args_.latent_dim;
      const std::size_t rope = token(row) * args_.q_rope_stride + head(row) * args_.rope_dim;
      load_row(args_.type, latents + latent * bytes, args_.latent_dim, to);
      load_row(args_.type, ropes + rope * bytes, args_.rope_dim, to + args_.latent_dim);
    }
  }

  [[nodiscard]] HeadSide side(quant::KvFormat format, std::uint64_t pool, std::uint64_t scales,
                              std::uint32_t dim) const {
    const std::uint32_t table_row = host_ptr<const std::uint32_t>(args_.table_rows)[tile().seq];
    return {.format = format,
            .stripes = host_ptr<const std::byte>(pool),
            .block_bytes = quant::kv_side_bytes(format, args_.block_size, 1, dim),
            .row_bytes = quant::kv_row_bytes(format, dim),
            .header_bytes = quant::kv_header_bytes(format, dim),
            .scale = scales == 0 ? 1.0F : *host_ptr<const float>(scales),
            .table = host_ptr<const std::uint32_t>(args_.block_tables) +
                     std::size_t{table_row} * args_.table_stride,
            .block_size = args_.block_size,
            .copies = reinterpret_cast<std::byte*>(scratch_.read)};
  }

  void do_attend(std::uint32_t split, std::uint32_t next_keys, const SoftmaxState& result) override {
    attend_mla_split(
        {.rows = rows(),
         .latent_dim = args_.latent_dim,
         .rope_dim = args_.rope_dim,
         .scale = args_.scale,
         .latents = side(args_.latent_format, args_.latent_pool, args_.latent_scales, args_.latent_dim),
         .ropes = side(args_.rope_format, args_.rope_pool, args_.rope_scales, args_.rope_dim),
         .start = split * kAttentionSplitTokens,
         .next_keys = next_keys,
         .q = scratch_.q,
         .ranges = ranges(),
         .scores = scratch_.scores,
         .read = scratch_.read,
         .read_ropes = scratch_.read_ropes,
         .tile = scratch_.tile,
         .result = result});
  }

  const MlaAttentionArgs& args_;
  const MlaScratch& scratch_;
};

// Heads that share a tile: as even a division as there is into tiles of at most kTileRows rows.
[[nodiscard]] std::uint32_t tile_heads(std::uint32_t num_heads) {
  constexpr auto kMost = static_cast<std::uint32_t>(kTileRows);
  const std::uint32_t tiles = (num_heads + kMost - 1) / kMost;
  return (num_heads + tiles - 1) / tiles;
}

void mla_attention(ThreadPool& pool, const MlaAttentionArgs& args) {
  check_mla_attention(args);
  const QueryRows step{.kernel = "mla_attention",
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
                       .num_heads = args.num_heads,
                       .tile_heads = tile_heads(args.num_heads),
                       .value_dim = args.latent_dim,
                       .out_stride = args.out_stride,
                       .type = args.type};
  attend_step(pool, step, [&](const QueryTile& tile, std::uint32_t group) {
    return MlaTile(args, step, tile, group, thread_scratch(rows_in(step, tile, group), args));
  });
}

}  // namespace

void register_mla_attention(gpu::CpuKernelTable& table) {
  table.add<mla_attention>(kMlaAttention);
}

}  // namespace metrale::kernels
