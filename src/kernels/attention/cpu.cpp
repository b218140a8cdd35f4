// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/kernels/attention.h>
#include <metrale/kernels/step.h>

#include "kernels/attention/check.h"
#include "kernels/attention/levels.h"
#include "kernels/attention/split.h"
#include "kernels/host_args.h"
#include "kernels/register.h"

namespace metrale::kernels {
namespace {

constexpr std::size_t kTileRows = 64;       // rows that share a widened key tile
constexpr std::size_t kTasksPerThread = 4;  // fewer tasks than that are divided by splits too

// Consecutive query tokens of one sequence.
struct QueryTile {
  std::uint32_t seq;
  std::uint32_t first_token;  // row of the step
  std::uint32_t tokens;
  std::uint32_t first_position;  // of first_token
};

// Positions [begin, end) that the query at `position` sees.
struct Visible {
  std::uint64_t begin;
  std::uint64_t end;
};
Visible visible(const AttentionArgs& args, std::uint64_t position) {
  const std::uint64_t end = position + 1;
  return {args.window != 0 && end > args.window ? end - args.window : 0, end};
}

// Splits [begin, end) that some query of the tile sees.
struct Splits {
  std::uint32_t begin;
  std::uint32_t end;
};
Splits splits_of(const AttentionArgs& args, const QueryTile& tile) {
  return {static_cast<std::uint32_t>(visible(args, tile.first_position).begin / kAttentionSplitTokens),
          attention_max_splits(tile.first_position + tile.tokens)};
}

// Scratch of one thread for tiles of up to `rows` rows.
class Scratch {
 public:
  void reserve(std::size_t rows, std::size_t padded_dim) {
    const std::size_t state = rows * (padded_dim + std::size_t{2} * 16);
    const std::size_t levels_floats = levels::tile_bytes(padded_dim) / sizeof(float);
    const std::size_t rounded_floats = rows * (padded_dim + 1 + levels::kMostRecords);
    const std::size_t floats =
        rows * padded_dim + rounded_floats + rows * (kAttentionSplitTokens + kKeyTile) +
        std::size_t{2} * kKeyTile * padded_dim + levels_floats + 2 * state + 2 * rows + std::size_t{16} * 20;
    if (buffer_.size_bytes() < floats * sizeof(float)) buffer_ = AlignedBuffer(floats * sizeof(float), 64);
    next_ = reinterpret_cast<float*>(buffer_.data());
    q = take(rows * padded_dim);
    scores = take(rows * kAttentionSplitTokens);
    tile = take(kKeyTile * padded_dim);
    copies = reinterpret_cast<std::byte*>(take(kKeyTile * padded_dim));
    levels = reinterpret_cast<std::byte*>(take(levels_floats));
    weights = take(rows * kKeyTile);
    rounded.stride = padded_dim;
    rounded.whole = reinterpret_cast<std::int16_t*>(take(rows * padded_dim / 2));
    rounded.upper = reinterpret_cast<std::int8_t*>(take(rows * padded_dim / 4));
    rounded.lower = reinterpret_cast<std::int8_t*>(take(rows * padded_dim / 4));
    rounded.sums = reinterpret_cast<std::int32_t*>(take(rows * levels::kMostRecords));
    rounded.factors = take(rows);
    ranges = reinterpret_cast<KeyRange*>(take(2 * rows));
    for (SoftmaxState* s : {&part, &total}) {
      s->max = take(rows);
      s->sum = take(rows);
      s->values = take(rows * padded_dim);
    }
  }

  float* q = nullptr;
  float* scores = nullptr;
  float* tile = nullptr;
  KeyRange* ranges = nullptr;
  SoftmaxState part;
  SoftmaxState total;
  std::byte* copies = nullptr;
  std::byte* levels = nullptr;
  float* weights = nullptr;
  levels::Queries rounded;

 private:
  float* take(std::size_t count) {
    float* result = next_;
    next_ += round_up(count, std::size_t{16});
    return result;
  }

  AlignedBuffer buffer_;
  float* next_ = nullptr;
};

Scratch& thread_scratch(std::size_t rows, std::size_t padded_dim) {
  thread_local Scratch scratch;
  scratch.reserve(rows, padded_dim);
  return scratch;
}

// One KV head of one query tile.
class TileHead {
 public:
  TileHead(const AttentionArgs& args, const QueryTile& tile, std::uint32_t kv_head)
      : args_(args),
        tile_(tile),
        kv_head_(kv_head),
        group_(args.num_q_heads / args.num_kv_heads),
        rows_(std::size_t{tile.tokens} * group_),
        padded_(round_up(std::size_t{args.head_dim}, std::size_t{16})),
        splits_(splits_of(args, tile)),
        scratch_(thread_scratch(rows_, padded_)) {}

  // All splits, folded as they come.
  void attend_all() {
    load_queries();
    const std::uint32_t end = tile_.first_position + tile_.tokens;
    for (std::uint32_t split = splits_.begin; split < splits_.end; ++split) {
      const std::uint32_t next = (split + 1) * kAttentionSplitTokens;
      attend(split, end > next ? end - next : 0);
      fold(split);
    }
    finish();
  }

  // One split, left in the workspace; nothing where no query sees it.
  void attend_one(std::uint32_t split, std::uint32_t stride_splits) {
    if (split < splits_.begin || split >= splits_.end) return;
    load_queries();
    attend(split, 0);
    for (std::size_t row = 0; row < rows_; ++row) {
      if (scratch_.ranges[row].empty()) continue;
      float* to = workspace(row, split, stride_splits);
      const SoftmaxState& state = state_of(split);
      to[0] = state.max[row];
      to[1] = state.sum[row];
      std::copy_n(state.values + row * padded_, args_.head_dim, to + 2);
    }
  }

  // Folds what attend_one left for every split.
  void combine(std::uint32_t stride_splits) {
    for (std::uint32_t split = splits_.begin; split < splits_.end; ++split) {
      set_ranges(split);
      for (std::size_t row = 0; row < rows_; ++row) {
        if (scratch_.ranges[row].empty()) continue;
        const float* from = workspace(row, split, stride_splits);
        const SoftmaxState& state = state_of(split);
        state.max[row] = from[0];
        state.sum[row] = from[1];
        float* values = state.values + row * padded_;
        std::copy_n(from + 2, args_.head_dim, values);
        std::fill(values + args_.head_dim, values + padded_, 0.0F);
      }
      fold(split);
    }
    finish();
  }

 private:
  [[nodiscard]] std::size_t token(std::size_t row) const { return tile_.first_token + row / group_; }
  [[nodiscard]] std::size_t head(std::size_t row) const {
    return std::size_t{kv_head_} * group_ + row % group_;
  }
  [[nodiscard]] std::size_t element(std::size_t row, std::uint32_t stride) const {
    return (token(row) * stride + head(row) * args_.head_dim) * quant::element_bytes(args_.type);
  }

  [[nodiscard]] float* workspace(std::size_t row, std::uint32_t split, std::uint32_t stride_splits) const {
    const std::size_t at = (token(row) * args_.num_q_heads + head(row)) * stride_splits + split;
    return host_ptr<float>(args_.workspace) + at * (args_.head_dim + 2U);
  }

  // The tile's first split is where the totals of the rows that see it start; what the others give is folded.
  [[nodiscard]] const SoftmaxState& state_of(std::uint32_t split) const {
    return split == splits_.begin ? scratch_.total : scratch_.part;
  }
  [[nodiscard]] Visible visible_to(std::size_t row) const {
    return visible(args_, std::uint64_t{tile_.first_position} + row / group_);
  }

  void load_queries() {
    for (std::size_t row = 0; row < rows_; ++row) {
      load_row(args_.type, host_ptr<const std::byte>(args_.q) + element(row, args_.q_stride), args_.head_dim,
               scratch_.q + row * padded_);
    }
    if (!levels::takes_keys(args_.k_format)) return;
    for (std::size_t row = 0; row < rows_; ++row) {
      round_row(args_.k_format, args_.scale, scratch_.q + row * padded_, args_.head_dim, row,
                scratch_.rounded);
    }
  }

  void set_ranges(std::uint32_t split) {
    const std::uint64_t start = std::uint64_t{split} * kAttentionSplitTokens;
    const auto in_split = [start](std::uint64_t position) {
      const std::uint64_t here = position > start ? position - start : 0;
      return static_cast<std::uint32_t>(std::min<std::uint64_t>(here, kAttentionSplitTokens));
    };
    for (std::size_t row = 0; row < rows_; ++row) {
      const Visible keys = visible_to(row);
      scratch_.ranges[row] = {in_split(keys.begin), in_split(keys.end)};
    }
  }

  [[nodiscard]] HeadSide side(quant::KvFormat format, std::uint64_t pool, std::uint64_t scales) const {
    const std::uint32_t table_row = host_ptr<const std::uint32_t>(args_.table_rows)[tile_.seq];
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

  // `next_keys`: keys of the next split, where this thread goes on to it.
  void attend(std::uint32_t split, std::uint32_t next_keys) {
    set_ranges(split);
    attend_split({.rows = rows_,
                  .head_dim = args_.head_dim,
                  .padded_dim = padded_,
                  .scale = args_.scale,
                  .keys = side(args_.k_format, args_.k_pool, args_.k_scales),
                  .values = side(args_.v_format, args_.v_pool, args_.v_scales),
                  .start = split * kAttentionSplitTokens,
                  .next_keys = next_keys,
                  .q = scratch_.q,
                  .rounded = scratch_.rounded,
                  .ranges = scratch_.ranges,
                  .scores = scratch_.scores,
                  .tile = scratch_.tile,
                  .levels = scratch_.levels,
                  .weights = scratch_.weights,
                  .result = state_of(split)});
  }

  void fold(std::uint32_t split) {
    if (split == splits_.begin) return;
    for (std::size_t row = 0; row < rows_; ++row) {
      if (scratch_.ranges[row].empty()) continue;
      if (visible_to(row).begin / kAttentionSplitTokens == split) {
        start_total(row);
      } else {
        fold_row(scratch_.total, scratch_.part, row, padded_);
      }
    }
  }

  void start_total(std::size_t row) {
    scratch_.total.max[row] = scratch_.part.max[row];
    scratch_.total.sum[row] = scratch_.part.sum[row];
    std::copy_n(scratch_.part.values + row * padded_, padded_, scratch_.total.values + row * padded_);
  }

  void finish() {
    for (std::size_t row = 0; row < rows_; ++row) {
      finish_row(scratch_.total, row, padded_, args_.head_dim, args_.type,
                 host_ptr<std::byte>(args_.out) + element(row, args_.out_stride));
    }
  }

  const AttentionArgs& args_;
  const QueryTile tile_;
  const std::uint32_t kv_head_;
  const std::uint32_t group_;
  const std::size_t rows_;
  const std::size_t padded_;
  const Splits splits_;
  Scratch& scratch_;
};

// The query tiles of the step. Throws InvalidArgument where the step's arrays contradict each other.
std::vector<QueryTile> cut_tiles(const AttentionArgs& a, std::uint32_t num_tokens, std::uint32_t num_seqs) {
  const auto* starts = host_ptr<const std::uint32_t>(a.query_starts);
  const auto* contexts = host_ptr<const std::uint32_t>(a.context_lens);
  const std::uint64_t capacity = std::uint64_t{a.table_stride} * a.block_size;
  const std::uint32_t step =
      std::max<std::uint32_t>(1, static_cast<std::uint32_t>(kTileRows) / (a.num_q_heads / a.num_kv_heads));
  std::vector<QueryTile> tiles;
  std::uint32_t next = 0;
  for (std::uint32_t seq = 0; seq < num_seqs; ++seq) {
    if (starts[seq] != next || starts[seq + 1] < next || starts[seq + 1] > num_tokens) {
      throw InvalidArgument(
          fmt::format("paged_attention: sequence {} owns query tokens [{}, {}) of {}, expected from {}", seq,
                      starts[seq], starts[seq + 1], num_tokens, next));
    }
    const std::uint32_t tokens = starts[seq + 1] - next;
    if (contexts[seq] < tokens || contexts[seq] > capacity) {
      throw InvalidArgument(
          fmt::format("paged_attention: sequence {} has a context of {} tokens, {} of them queries; its "
                      "block table holds {}",
                      seq, contexts[seq], tokens, capacity));
    }
    for (std::uint32_t at = 0; at < tokens; at += step) {
      tiles.push_back({seq, next + at, std::min(step, tokens - at), contexts[seq] - tokens + at});
    }
    next += tokens;
  }
  if (next != num_tokens) {
    throw InvalidArgument(
        fmt::format("paged_attention: the sequences own {} query tokens, the step has {}", next, num_tokens));
  }
  return tiles;
}

// Every split of every tile and KV head is a task of its own; a second pass folds them in order.
void attend_by_splits(ThreadPool& pool, const AttentionArgs& args, const std::vector<QueryTile>& tiles,
                      Splits splits, std::uint32_t stride_splits) {
  const std::size_t heads = args.num_kv_heads;
  const std::size_t count = splits.end - splits.begin;
  pool.parallel_for(tiles.size() * heads * count, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto split = splits.begin + static_cast<std::uint32_t>(i % count);
      const auto head = static_cast<std::uint32_t>(i / count % heads);
      TileHead(args, tiles[i / count / heads], head).attend_one(split, stride_splits);
    }
  });
  pool.parallel_for(tiles.size() * heads, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      TileHead(args, tiles[i / heads], static_cast<std::uint32_t>(i % heads)).combine(stride_splits);
    }
  });
}

void paged_attention(ThreadPool& pool, const AttentionArgs& args) {
  check_attention(args);
  const StepCounts counts = *host_ptr<const StepCounts>(args.counts);
  if (counts.num_tokens > args.max_tokens || counts.num_seqs > args.max_seqs) {
    throw InvalidArgument(
        fmt::format("paged_attention: {} tokens of {} sequences in this step, but the launch was made for at "
                    "most {} of {}",
                    counts.num_tokens, counts.num_seqs, args.max_tokens, args.max_seqs));
  }
  const std::vector<QueryTile> tiles = cut_tiles(args, counts.num_tokens, counts.num_seqs);
  Splits splits{~std::uint32_t{0}, 0};
  std::uint32_t most = 0;  // of one tile
  for (const QueryTile& tile : tiles) {
    const Splits own = splits_of(args, tile);
    splits = {std::min(splits.begin, own.begin), std::max(splits.end, own.end)};
    most = std::max(most, own.end - own.begin);
  }
  const std::size_t tasks = tiles.size() * args.num_kv_heads;
  const bool workspace_fits = args.workspace != 0 && counts.num_tokens <= args.workspace_rows;
  if (most > 1 && workspace_fits && tasks < kTasksPerThread * pool.size()) {
    return attend_by_splits(pool, args, tiles, splits, splits.end);
  }
  // Later tiles see more keys: longest first, so that the last task to end is a short one.
  pool.parallel_for(tasks, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t at = tasks - 1 - i;
      TileHead(args, tiles[at / args.num_kv_heads], static_cast<std::uint32_t>(at % args.num_kv_heads))
          .attend_all();
    }
  });
}

}  // namespace

void register_attention(gpu::CpuKernelTable& table) {
  table.add<paged_attention>(kPagedAttention);
}

}  // namespace metrale::kernels
