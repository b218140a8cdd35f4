// SPDX-License-Identifier: Apache-2.0
// mla_attention: causal multi-head latent attention (DeepSeek's) of a ragged batch over the paged cache, in
// its absorbed form: all query heads share one latent vector a token, which is key and value at once, and one
// rope key, turned by the position. score = scale * (<q_latent, latent> + <q_rope, rope>); the result is the
// weighted sum of latents. The step's own latents and rope keys are in the cache already: two launches of
// kv_write without values put them there, each as the key side of a pool with one head.
//
// Where a format is rotated, so must its part of the queries be (rotate_heads); of a rotated latent so is the
// result. Latents are stored without a mean, which would be missing from the result.
//
// Exactness, the order of sums and what of the cache is read are as for paged_attention.
#pragma once

#include <metrale/gpu/kernel_id.h>
#include <metrale/kernels/attention.h>
#include <metrale/quant/element_type.h>
#include <metrale/quant/kv_format.h>

namespace metrale::kernels {

// Dimensions are multiples of kMlaDimStep.
inline constexpr std::uint32_t kMlaDimStep = 16;
inline constexpr std::uint32_t kMlaMinLatentDim = 64;
inline constexpr std::uint32_t kMlaMaxLatentDim = 512;
inline constexpr std::uint32_t kMlaMinRopeDim = 16;
inline constexpr std::uint32_t kMlaMaxRopeDim = 128;
static_assert(kMlaMaxLatentDim <= quant::kKvMaxHeadDim);

struct MlaAttentionArgs {
  std::uint64_t counts;        // StepCounts
  std::uint64_t q_latent;      // type[num_tokens][num_heads][latent_dim], row stride q_latent_stride
  std::uint64_t q_rope;        // type[num_tokens][num_heads][rope_dim], row stride q_rope_stride
  std::uint64_t out;           // type[num_tokens][num_heads][latent_dim], row stride out_stride
  std::uint64_t latent_pool;   // blocks of kv_side_bytes(latent_format, block_size, 1, latent_dim)
  std::uint64_t rope_pool;     // blocks of kv_side_bytes(rope_format, block_size, 1, rope_dim)
  std::uint64_t block_tables;  // uint32[rows][table_stride]: block ids in position order
  std::uint64_t query_starts;  // uint32[num_seqs + 1]
  std::uint64_t context_lens;  // uint32[num_seqs], this step's tokens included
  std::uint64_t table_rows;    // uint32[num_seqs]: row of block_tables
  std::uint64_t workspace;     // float[workspace_rows][num_heads][max splits][latent_dim + 2]; 0: none
  std::uint32_t max_tokens;
  std::uint32_t max_seqs;
  std::uint32_t table_stride;    // elements; max_seq_len / block_size rounded up
  std::uint32_t workspace_rows;  // a step of at most so many tokens may divide work by splits
  std::uint32_t num_heads;
  std::uint32_t latent_dim;  // kMlaMinLatentDim to kMlaMaxLatentDim
  std::uint32_t rope_dim;    // kMlaMinRopeDim to kMlaMaxRopeDim
  std::uint32_t block_size;
  std::uint32_t q_latent_stride;  // elements
  std::uint32_t q_rope_stride;    // elements
  std::uint32_t out_stride;       // elements
  quant::ElementType type;
  quant::KvFormat latent_format;
  quant::KvFormat rope_format;
  float scale;                      // usually 1 / sqrt(dimension of a head's key before it was absorbed)
  std::uint32_t window;             // as of AttentionArgs
  std::uint64_t latent_scales = 0;  // float[1] of fp8 and nvfp4; 0: one
  std::uint64_t rope_scales = 0;
};
static_assert(sizeof(MlaAttentionArgs) == 168);
inline constexpr gpu::KernelId<MlaAttentionArgs> kMlaAttention{"mla_attention", "mla_attention"};
// On a device a block takes so many heads of a row.
inline constexpr std::uint32_t kMlaBlockHeads = 8;
[[nodiscard]] inline gpu::LaunchShape launch_shape(const MlaAttentionArgs& a) {
  return {.grid = {a.max_tokens, (a.num_heads + kMlaBlockHeads - 1) / kMlaBlockHeads}, .block = {128}};
}

}  // namespace metrale::kernels
