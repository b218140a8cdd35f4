// SPDX-License-Identifier: Apache-2.0
// EngineLimits: the four numbers that size everything an engine allocates. Plan, arena, cache and scheduler
// use these and nothing else.
#pragma once

#include <cstdint>

namespace metrale::gpu {

struct EngineLimits {
  std::uint32_t max_seq_len = 0;       // tokens of one sequence, prompt and answer
  std::uint32_t max_batch_size = 0;    // sequences in one step
  std::uint32_t max_batch_tokens = 0;  // rows of one step; at least max_batch_size
  std::uint32_t block_size = 0;        // tokens of one KV block: 16, 32, 64 or 128

  // Throws InvalidArgument naming the limit that is wrong.
  void validate() const;
  // Blocks of a sequence of max_seq_len tokens.
  [[nodiscard]] std::uint32_t blocks_per_seq() const;
};

}  // namespace metrale::gpu
