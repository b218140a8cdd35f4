// SPDX-License-Identifier: Apache-2.0
// StepLayout: the one device buffer that says what a step does. Everything that changes from step to step
// lies here (and in the block tables), so that a captured graph replays for any step; kernel arguments hold
// addresses and constants.
//
// A step takes a ragged batch: sequence s owns the query tokens [query_starts[s], query_starts[s+1]) of the
// step, and after the step its context is context_lens[s] tokens long, the last of which are those query
// tokens.
#pragma once

#include <cstddef>
#include <cstdint>

namespace metrale::kernels {

// The counts that kernels read as their row count: each argument struct holds the address of one of these.
struct StepCounts {
  std::uint32_t num_tokens = 0;
  std::uint32_t num_seqs = 0;
  std::uint32_t num_logit_rows = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(StepCounts) == 16);

// Byte offsets of the arrays for a capacity of `max_tokens` tokens and `max_seqs` sequences (as many logit
// rows as tokens). Each array starts at a multiple of 64 bytes.
struct StepLayout {
  std::uint32_t max_tokens = 0;
  std::uint32_t max_seqs = 0;
  std::size_t counts = 0;        // StepCounts
  std::size_t token_ids = 0;     // int32[max_tokens]
  std::size_t positions = 0;     // uint32[max_tokens], absolute
  std::size_t slots = 0;         // int64[max_tokens]: block * block_size + offset; negative: not written
  std::size_t query_starts = 0;  // uint32[max_seqs + 1]
  std::size_t context_lens = 0;  // uint32[max_seqs]
  std::size_t table_rows = 0;    // uint32[max_seqs]: the sequence's row of the block tables
  std::size_t logit_rows = 0;    // uint32[max_tokens]: which token's hidden state gives each logit row
  std::size_t total_bytes = 0;
};

[[nodiscard]] constexpr StepLayout step_layout(std::uint32_t max_tokens, std::uint32_t max_seqs) {
  StepLayout layout{.max_tokens = max_tokens, .max_seqs = max_seqs};
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
  layout.total_bytes = next;
  return layout;
}

}  // namespace metrale::kernels
