// SPDX-License-Identifier: Apache-2.0
// StepLayout: the one device buffer that says what a step does. Everything that changes from step to step
// lies here (and in the block tables), so that a captured graph replays for any step; kernel arguments hold
// addresses and constants.
//
// A step takes a ragged batch: sequence s owns the query tokens [query_starts[s], query_starts[s+1]) of the
// step, and after the step its context is context_lens[s] tokens long, the last of which are those query
// tokens.
//
// Block tables stay on the device from step to step; a step brings the entries that changed, and
// apply_table_deltas writes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <metrale/gpu/kernel_id.h>

namespace metrale::kernels {

// The counts that kernels read as their row count: each argument struct holds the address of one of these.
struct StepCounts {
  std::uint32_t num_tokens = 0;
  std::uint32_t num_seqs = 0;
  std::uint32_t num_logit_rows = 0;
  std::uint32_t num_table_deltas = 0;
};
static_assert(sizeof(StepCounts) == 16);

// Byte offsets of the arrays for a capacity of `max_tokens` tokens and `max_seqs` sequences (as many logit
// rows as tokens) and `max_deltas` changed entries of the block tables. Each array starts at a multiple of 64
// bytes.
struct StepLayout {
  std::uint32_t max_tokens = 0;
  std::uint32_t max_seqs = 0;
  std::uint32_t max_deltas = 0;
  std::size_t counts = 0;         // StepCounts
  std::size_t token_ids = 0;      // int32[max_tokens]
  std::size_t positions = 0;      // uint32[max_tokens], absolute
  std::size_t slots = 0;          // int64[max_tokens]: block * block_size + offset; negative: not written
  std::size_t query_starts = 0;   // uint32[max_seqs + 1]
  std::size_t context_lens = 0;   // uint32[max_seqs]
  std::size_t table_rows = 0;     // uint32[max_seqs]: the sequence's row of the block tables
  std::size_t logit_rows = 0;     // uint32[max_tokens]: which token's hidden state gives each logit row
  std::size_t delta_entries = 0;  // uint32[max_deltas]: row * table_stride + column in the block tables
  std::size_t delta_blocks = 0;   // uint32[max_deltas]: the block that stands there from this step on
  std::size_t total_bytes = 0;
};

[[nodiscard]] constexpr StepLayout step_layout(std::uint32_t max_tokens, std::uint32_t max_seqs,
                                               std::uint32_t max_deltas) {
  StepLayout layout{.max_tokens = max_tokens, .max_seqs = max_seqs, .max_deltas = max_deltas};
  std::size_t next = 0;
  const auto place = [&next](std::size_t bytes) {
    const std::size_t at = next;
    next = (next + bytes + 63) / 64 * 64;
    return at;
  };
  layout.counts = place(sizeof(StepCounts));
  layout.token_ids = place(std::size_t{max_tokens} * 4);
  layout.positions = place(std::size_t{max_tokens} * 4);
  layout.slots = place(std::size_t{max_tokens} * 8);
  layout.query_starts = place((std::size_t{max_seqs} + 1) * 4);
  layout.context_lens = place(std::size_t{max_seqs} * 4);
  layout.table_rows = place(std::size_t{max_seqs} * 4);
  layout.logit_rows = place(std::size_t{max_tokens} * 4);
  layout.delta_entries = place(std::size_t{max_deltas} * 4);
  layout.delta_blocks = place(std::size_t{max_deltas} * 4);
  layout.total_bytes = next;
  return layout;
}

// tables[entries[i]] = blocks[i] for each delta i. Two deltas of a step must not name one entry.
struct ApplyTableDeltasArgs {
  std::uint64_t num_deltas;     // uint32: StepCounts::num_table_deltas
  std::uint64_t entries;        // uint32[num_deltas]; one not below table_entries fails the stream
  std::uint64_t blocks;         // uint32[num_deltas]
  std::uint64_t tables;         // uint32[table_entries]
  std::uint64_t table_entries;  // rows * table_stride
  std::uint32_t max_deltas;
  std::uint32_t reserved;
};
static_assert(sizeof(ApplyTableDeltasArgs) == 48);
inline constexpr gpu::KernelId<ApplyTableDeltasArgs> kApplyTableDeltas{"step", "apply_table_deltas"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const ApplyTableDeltasArgs& a) {
  return {.grid = {std::max(1U, (a.max_deltas + 255) / 256)}, .block = {256}};
}

}  // namespace metrale::kernels
