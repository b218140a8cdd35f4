// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/query_tiles.h"

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/kernels/step.h>

#include "kernels/host_args.h"

namespace metrale::kernels {
namespace {

Visible visible(const QueryRows& step, std::uint64_t position) {
  const std::uint64_t end = position + 1;
  return {step.window != 0 && end > step.window ? end - step.window : 0, end};
}

SplitRange splits_of(const QueryRows& step, const QueryTile& tile) {
  return {static_cast<std::uint32_t>(visible(step, tile.first_position).begin / kAttentionSplitTokens),
          attention_max_splits(tile.first_position + tile.tokens)};
}

std::vector<QueryTile> cut_tiles(const QueryRows& step, const StepCounts& counts) {
  const auto* starts = host_ptr<const std::uint32_t>(step.query_starts);
  const auto* contexts = host_ptr<const std::uint32_t>(step.context_lens);
  const std::uint32_t most =
      std::max<std::uint32_t>(1, static_cast<std::uint32_t>(kTileRows) / step.tile_heads);
  std::vector<QueryTile> tiles;
  std::uint32_t next = 0;
  for (std::uint32_t seq = 0; seq < counts.num_seqs; ++seq) {
    if (starts[seq] != next || starts[seq + 1] < next || starts[seq + 1] > counts.num_tokens) {
      throw InvalidArgument(fmt::format("{}: sequence {} owns query tokens [{}, {}) of {}, expected from {}",
                                        step.kernel, seq, starts[seq], starts[seq + 1], counts.num_tokens,
                                        next));
    }
    const std::uint32_t tokens = starts[seq + 1] - next;
    if (contexts[seq] < tokens || contexts[seq] > step.max_context) {
      throw InvalidArgument(
          fmt::format("{}: sequence {} has a context of {} tokens, {} of them queries; its block table holds "
                      "{}",
                      step.kernel, seq, contexts[seq], tokens, step.max_context));
    }
    for (std::uint32_t at = 0; at < tokens; at += most) {
      tiles.push_back({seq, next + at, std::min(most, tokens - at), contexts[seq] - tokens + at});
    }
    next += tokens;
  }
  if (next != counts.num_tokens) {
    throw InvalidArgument(fmt::format("{}: the sequences own {} query tokens, the step has {}", step.kernel,
                                      next, counts.num_tokens));
  }
  return tiles;
}

}  // namespace

StepPlan plan_step(const QueryRows& step, std::size_t threads) {
  const StepCounts counts = *host_ptr<const StepCounts>(step.counts);
  if (counts.num_tokens > step.max_tokens || counts.num_seqs > step.max_seqs) {
    throw InvalidArgument(
        fmt::format("{}: {} tokens of {} sequences in this step, but the launch was made for at most {} of "
                    "{}",
                    step.kernel, counts.num_tokens, counts.num_seqs, step.max_tokens, step.max_seqs));
  }
  StepPlan plan{.tiles = cut_tiles(step, counts), .splits = {~std::uint32_t{0}, 0}, .by_splits = false};
  std::uint32_t most = 0;  // of one tile
  for (const QueryTile& tile : plan.tiles) {
    const SplitRange own = splits_of(step, tile);
    plan.splits = {std::min(plan.splits.begin, own.begin), std::max(plan.splits.end, own.end)};
    most = std::max(most, own.end - own.begin);
  }
  const bool workspace_fits = step.workspace != 0 && counts.num_tokens <= step.workspace_rows;
  plan.by_splits =
      most > 1 && workspace_fits && plan.tiles.size() * step.groups() < kTasksPerThread * threads;
  return plan;
}

TileRows::TileRows(const QueryRows& step, const QueryTile& tile, std::uint32_t group, const FoldState& state)
    : step_(step),
      tile_(tile),
      first_head_(std::size_t{group} * step.tile_heads),
      heads_(step.heads_of(group)),
      rows_(rows_in(step, tile, group)),
      padded_(round_up(std::size_t{step.value_dim}, std::size_t{16})),
      splits_(splits_of(step, tile)),
      state_(state) {}

void TileRows::attend_all() {
  do_load_queries();
  const std::uint32_t end = tile_.first_position + tile_.tokens;
  for (std::uint32_t split = splits_.begin; split < splits_.end; ++split) {
    const std::uint32_t next = (split + 1) * kAttentionSplitTokens;
    set_ranges(split);
    do_attend(split, end > next ? end - next : 0, state_of(split));
    fold(split);
  }
  finish();
}

void TileRows::attend_one(std::uint32_t split, std::uint32_t stride_splits) {
  if (split < splits_.begin || split >= splits_.end) return;
  do_load_queries();
  set_ranges(split);
  const SoftmaxState& state = state_of(split);
  do_attend(split, 0, state);
  for (std::size_t row = 0; row < rows_; ++row) {
    if (state_.ranges[row].empty()) continue;
    float* to = workspace(row, split, stride_splits);
    to[0] = state.max[row];
    to[1] = state.sum[row];
    std::copy_n(state.values + row * padded_, step_.value_dim, to + 2);
  }
}

void TileRows::combine(std::uint32_t stride_splits) {
  for (std::uint32_t split = splits_.begin; split < splits_.end; ++split) {
    set_ranges(split);
    const SoftmaxState& state = state_of(split);
    for (std::size_t row = 0; row < rows_; ++row) {
      if (state_.ranges[row].empty()) continue;
      const float* from = workspace(row, split, stride_splits);
      state.max[row] = from[0];
      state.sum[row] = from[1];
      float* values = state.values + row * padded_;
      std::copy_n(from + 2, step_.value_dim, values);
      std::fill(values + step_.value_dim, values + padded_, 0.0F);
    }
    fold(split);
  }
  finish();
}

// The tile's first split is where the totals of the rows that see it start; what the others give is folded.
const SoftmaxState& TileRows::state_of(std::uint32_t split) const {
  return split == splits_.begin ? state_.total : state_.part;
}

Visible TileRows::visible_to(std::size_t row) const {
  return visible(step_, std::uint64_t{tile_.first_position} + row / heads_);
}

float* TileRows::workspace(std::size_t row, std::uint32_t split, std::uint32_t stride_splits) const {
  const std::size_t at = (token(row) * step_.num_heads + head(row)) * stride_splits + split;
  return host_ptr<float>(step_.workspace) + at * (step_.value_dim + 2U);
}

void TileRows::set_ranges(std::uint32_t split) {
  const std::uint64_t start = std::uint64_t{split} * kAttentionSplitTokens;
  const auto in_split = [start](std::uint64_t position) {
    const std::uint64_t here = position > start ? position - start : 0;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(here, kAttentionSplitTokens));
  };
  for (std::size_t row = 0; row < rows_; ++row) {
    const Visible keys = visible_to(row);
    state_.ranges[row] = {in_split(keys.begin), in_split(keys.end)};
  }
}

void TileRows::fold(std::uint32_t split) {
  if (split == splits_.begin) return;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (state_.ranges[row].empty()) continue;
    if (visible_to(row).begin / kAttentionSplitTokens == split) {
      start_total(row);
    } else {
      fold_row(state_.total, state_.part, row, padded_);
    }
  }
}

void TileRows::start_total(std::size_t row) {
  state_.total.max[row] = state_.part.max[row];
  state_.total.sum[row] = state_.part.sum[row];
  std::copy_n(state_.part.values + row * padded_, padded_, state_.total.values + row * padded_);
}

void TileRows::finish() {
  for (std::size_t row = 0; row < rows_; ++row) {
    const std::size_t at = token(row) * step_.out_stride + head(row) * step_.value_dim;
    finish_row(state_.total, row, padded_, step_.value_dim, step_.type,
               host_ptr<std::byte>(step_.out) + at * quant::element_bytes(step_.type));
  }
}

}  // namespace metrale::kernels
