// SPDX-License-Identifier: Apache-2.0
// BufferArena: every activation and metadata buffer of an engine, allocated once, so that addresses stay the
// same from step to step (captured graphs hold them). arena_sizes() is the one place that knows how large
// each is; docs/arena.md has the rules as a table.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <metrale/gpu/buffer.h>
#include <metrale/gpu/limits.h>
#include <metrale/gpu/resource.h>

namespace metrale::gpu {

// What the arena needs to know of a model. 0 where the model has no such part.
struct ArenaModel {
  std::uint32_t activation_bytes = 2;  // of one element: 2 or 4
  std::uint32_t hidden = 0;
  std::uint32_t vocab = 0;
  // Attention. With multi-head latent attention head_dim is the width of a query head (nope + rope).
  std::uint32_t num_q_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  bool has_gated_q = false;  // the query projection also gives a gate of the same width
  std::uint32_t mla_kv_lora_rank = 0;
  std::uint32_t mla_q_lora_rank = 0;
  std::uint32_t rope_tables = 1;  // kinds of layers that turn by other angles
  std::uint32_t mla_rope_dim = 0;
  // Feed-forward.
  std::uint32_t intermediate = 0;  // of the dense layers
  std::uint32_t num_experts = 0;
  std::uint32_t num_zero_experts = 0;  // that the router can choose and that compute nothing
  std::uint32_t experts_per_token = 0;
  std::uint32_t expert_intermediate = 0;
  std::uint32_t shared_intermediate = 0;  // of all shared experts together
  std::uint32_t expert_latent = 0;        // width that experts work in where it is not `hidden`
  // Gated delta net.
  std::uint32_t linear_qkvz = 0;  // width of the joint projection
  std::uint32_t linear_ba = 0;
  std::uint32_t linear_v_heads = 0;
  std::uint32_t linear_v_head_dim = 0;
  // Mamba 2.
  std::uint32_t mamba_inner = 0;
  std::uint32_t mamba_in_proj = 0;
  std::uint32_t mamba_conv = 0;  // channels of x, B and C
  // Variants.
  bool has_fp8_activations = false;    // products read activations that are quantized on the way in
  std::uint32_t adapter_max_rank = 0;  // LoRA
  // What products of libraries may use while they run: the backend's Capabilities say it.
  std::uint64_t linear_workspace_bytes = 0;

  // Throws InvalidArgument naming the fact that is wrong.
  void validate() const;
};

// Bytes of each buffer; 0: the model has no use for it. Notation: M = max_batch_tokens, Mp = M rounded up to
// 16 (rows of whatever a matrix product reads or writes), S = max_batch_size, L = arena_logit_rows(), "act" =
// an element of activation_bytes.
struct ArenaSizes {
  std::uint64_t residual = 0;             // float[M][hidden], the residual stream
  std::uint64_t hidden_states = 0;        // act[Mp][hidden], final normalised rows, gathered for the LM head
  std::uint64_t norm_output = 0;          // act[Mp][widest normalised row]
  std::uint64_t qkv_output = 0;           // act[Mp][query (and gate), key and value heads]; MLA: query heads
  std::uint64_t attn_output = 0;          // act[Mp][widest input of an output projection]
  std::uint64_t branch_output = 0;        // float[Mp][hidden], what a layer adds to the residual stream
  std::uint64_t attention_workspace = 0;  // float[arena_split_rows][q head][split of 512][value width + 2]
  std::uint64_t rope_table = 0;           // float[rope_tables][M][rotated width]
  std::uint64_t mla_kv_latent = 0;        // act[Mp][kv_lora + rope]
  std::uint64_t mla_q_latent = 0;         // act[Mp][q_lora]
  std::uint64_t mla_o_latent = 0;         // act[Mp][q head][kv_lora]
  std::uint64_t gate_logits = 0;          // float[Mp][experts + zero experts]
  std::uint64_t moe_router_in = 0;        // float[Mp][hidden]
  std::uint64_t moe_latent = 0;           // act[Mp][expert_latent]
  std::uint64_t moe_output = 0;           // float[Mp][hidden], the weighted sum of the experts
  std::uint64_t expert_gate_up_out = 0;   // act[Mp][2 x widest: experts per token together, or dense]
  std::uint64_t expert_down_out = 0;      // act[Mp][expert of the token][hidden or expert_latent]
  std::uint64_t shared_gate_out = 0;      // act[Mp][shared_intermediate]
  std::uint64_t shared_up_out = 0;        // as shared_gate_out
  std::uint64_t ssm_in_proj = 0;          // act[Mp][linear_qkvz or mamba_in_proj]
  std::uint64_t ssm_ba = 0;               // act[Mp][linear_ba]
  std::uint64_t ssm_deinterleaved = 0;    // act[Mp][linear_qkvz or mamba_conv]
  std::uint64_t ssm_gates = 0;            // float[M][2][linear_v_heads]
  std::uint64_t ssm_conv_out = 0;         // float[M][linear_qkvz or mamba_conv]
  std::uint64_t fp8_activations = 0;      // byte[Mp][widest input of a projection]
  std::uint64_t fp8_scales = 0;           // float[Mp][widest input / 128]
  std::uint64_t fp8_scales_k_major = 0;   // as fp8_scales
  std::uint64_t lora_shrink = 0;          // float[Mp][adapter_max_rank]
  std::uint64_t lora_row_adapters = 0;    // uint32[M]
  std::uint64_t linear_workspace = 0;     // byte[linear_workspace_bytes]
  std::uint64_t logits = 0;               // float[L][vocab]
  std::uint64_t sampled_tokens = 0;       // int32[L]
  std::uint64_t step = 0;                 // metadata of the step, laid out by the kernels
  std::uint64_t block_tables = 0;         // uint32[S][blocks_per_seq]

  // Throws InvalidArgument where the sum does not fit 64 bits.
  [[nodiscard]] std::uint64_t total_bytes() const;
};

// A buffer is named by its member of ArenaSizes: `&ArenaSizes::logits`.
using ArenaField = std::uint64_t ArenaSizes::*;
struct ArenaFieldName {
  std::string_view name;
  ArenaField field = nullptr;
};
// Every buffer, in order of declaration.
[[nodiscard]] std::span<const ArenaFieldName> arena_fields();

// Rows of a step whose attention may be computed in splits of the keys side by side: the first so many, at
// least S. A short chunk after a long past has little other work to share; 64 MiB at most are spent beyond S.
[[nodiscard]] std::uint32_t arena_split_rows(const ArenaModel& model, const EngineLimits& limits);

// Rows of logits that one step can give: every sequence of a full decode batch and one more, and never fewer
// than 160 where a step has so many tokens.
[[nodiscard]] std::uint32_t arena_logit_rows(const EngineLimits& limits);

// Pure. `step_bytes` is what the kernels' step layout takes for these limits. Throws InvalidArgument for a
// model or limits that make no sense, and where a size does not fit 64 bits.
[[nodiscard]] ArenaSizes arena_sizes(const ArenaModel& model, const EngineLimits& limits,
                                     std::uint64_t step_bytes);

class BufferArena final : public ModelResource {
 public:
  // Blocking; all or nothing. Throws OutOfMemory naming the buffer that did not fit. The backend outlives the
  // arena.
  BufferArena(GpuBackend& gpu, const ArenaSizes& sizes);

  [[nodiscard]] const ArenaSizes& sizes() const { return sizes_; }
  // Null for a buffer of size 0, and after release().
  [[nodiscard]] DevicePtr ptr(ArenaField field) const;
  // Throws InvalidArgument naming the buffer where it is null.
  [[nodiscard]] DevicePtr require(ArenaField field) const;

 private:
  [[nodiscard]] std::string_view do_label() const override { return "buffer arena"; }
  void do_release(GpuBackend& gpu) override;

  ArenaSizes sizes_;
  std::vector<DeviceBuffer> buffers_;  // in the order of arena_fields()
};

}  // namespace metrale::gpu
