// SPDX-License-Identifier: Apache-2.0
// paged_attention: causal grouped-query attention of a ragged batch over the paged cache, prefill chunks and
// decode rows in one call, over the whole context or a sliding window. The step's own keys and values are in
// the cache already. Where the keys' format is rotated the queries must be (rotate_heads); where the values'
// is, so is the result.
//
// Exactness: a query's result depends on nothing but its own row, its position and its keys and values. The
// context is cut at absolute multiples of kAttentionSplitTokens; each split that the query sees gives
// (maximum, sum, weighted values) in FP32, summed in position order, and splits are folded in position order,
// however the work is divided. Of the cache, only blocks are read that hold some of a group of 16 positions
// (from a multiple of 16 on) of which a query sees one: older blocks may be gone.
#pragma once

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>
#include <metrale/quant/kv_format.h>

namespace metrale::kernels {

inline constexpr std::uint32_t kAttentionSplitTokens = 512;
inline constexpr std::uint32_t kAttentionMaxHeadDim = quant::kKvMaxHeadDim;

struct AttentionArgs {
  std::uint64_t counts;  // StepCounts
  std::uint64_t q;       // type[num_tokens][num_q_heads][head_dim], row stride q_stride
  std::uint64_t out;     // type[num_tokens][num_q_heads][head_dim], row stride out_stride
  std::uint64_t k_pool;  // as in kv_write
  std::uint64_t v_pool;
  std::uint64_t block_tables;  // uint32[rows][table_stride]: block ids in position order
  std::uint64_t query_starts;  // uint32[num_seqs + 1]
  std::uint64_t context_lens;  // uint32[num_seqs], this step's tokens included
  std::uint64_t table_rows;    // uint32[num_seqs]: row of block_tables
  std::uint64_t workspace;     // float[workspace_rows][num_q_heads][max splits][head_dim + 2]
  std::uint32_t max_tokens;
  std::uint32_t max_seqs;
  std::uint32_t table_stride;    // elements; max_seq_len / block_size rounded up
  std::uint32_t workspace_rows;  // a step of at most so many tokens may divide work by splits
  std::uint32_t num_q_heads;     // a multiple of num_kv_heads
  std::uint32_t num_kv_heads;
  std::uint32_t head_dim;  // at most kAttentionMaxHeadDim
  std::uint32_t block_size;
  std::uint32_t q_stride;    // elements
  std::uint32_t out_stride;  // elements
  quant::ElementType type;
  quant::KvFormat k_format;
  quant::KvFormat v_format;
  float scale;           // usually 1 / sqrt(head_dim)
  std::uint32_t window;  // 0: none; else a query at position p sees the keys at positions > p - window
  std::uint32_t reserved;
  std::uint64_t k_scales = 0;  // float[num_kv_heads] of fp8 and nvfp4; 0: ones
  std::uint64_t v_scales = 0;
};
static_assert(sizeof(AttentionArgs) == 160);
inline constexpr gpu::KernelId<AttentionArgs> kPagedAttention{"attention", "paged_attention"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const AttentionArgs& a) {
  return {.grid = {a.max_tokens, a.num_kv_heads}, .block = {128}};
}

// Splits of a context of at most `max_seq_len` tokens.
[[nodiscard]] constexpr std::uint32_t attention_max_splits(std::uint32_t max_seq_len) {
  return (max_seq_len + kAttentionSplitTokens - 1) / kAttentionSplitTokens;
}

}  // namespace metrale::kernels
