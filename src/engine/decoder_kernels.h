// SPDX-License-Identifier: Apache-2.0
// Every kernel of a step, resolved once at the decoder's construction.
#pragma once

#include <optional>

#include <metrale/engine/decoder.h>
#include <metrale/gpu/kernel.h>
#include <metrale/kernels/activation.h>
#include <metrale/kernels/attention.h>
#include <metrale/kernels/embedding.h>
#include <metrale/kernels/flashinfer.h>
#include <metrale/kernels/kv_write.h>
#include <metrale/kernels/linear.h>
#include <metrale/kernels/logits.h>
#include <metrale/kernels/norm.h>
#include <metrale/kernels/rope.h>
#include <metrale/kernels/rotation.h>
#include <metrale/kernels/step.h>

namespace metrale::engine {

// Matrix products of libraries like whole tiles of rows; the arena's buffers hold them.
inline constexpr std::uint32_t kRowTile = 16;

struct Decoder::Kernels {
  Kernels(gpu::GpuBackend& gpu, const DecoderOptions& options)
      : embedding(gpu, kernels::kEmbedding),
        rms_norm(gpu, kernels::kRmsNorm),
        add_rms_norm(gpu, kernels::kAddRmsNorm),
        rope_table(gpu, kernels::kRopeTable),
        rope(gpu, kernels::kRope),
        rotate_heads(gpu, kernels::kRotateHeads),
        linear(gpu, options.fast ? kernels::kLinearFast : kernels::kLinear),
        silu_mul(gpu, kernels::kSiluMul),
        gelu_tanh_mul(gpu, kernels::kGeluTanhMul),
        residual_add(gpu, kernels::kResidualAdd),
        kv_write(gpu, kernels::kKvWrite),
        attention(gpu, kernels::kPagedAttention),
        gather_rows(gpu, kernels::kGatherRows),
        argmax(gpu, kernels::kArgmax),
        apply_table_deltas(gpu, kernels::kApplyTableDeltas) {
    if (options.attention == AttentionKernel::kFlashInfer)
      flashinfer.emplace(gpu, kernels::kFlashInferDecode);
  }

  // FlashInfer serves one token a sequence over the whole context.
  [[nodiscard]] const gpu::BoundKernel<kernels::AttentionArgs>& attention_of(bool single_tokens,
                                                                             std::uint32_t window) const {
    return flashinfer && single_tokens && window == 0 ? *flashinfer : attention;
  }

  gpu::BoundKernel<kernels::EmbeddingArgs> embedding;
  gpu::BoundKernel<kernels::RmsNormArgs> rms_norm;
  gpu::BoundKernel<kernels::AddRmsNormArgs> add_rms_norm;
  gpu::BoundKernel<kernels::RopeTableArgs> rope_table;
  gpu::BoundKernel<kernels::RopeArgs> rope;
  gpu::BoundKernel<kernels::RotateHeadsArgs> rotate_heads;
  gpu::BoundKernel<kernels::LinearArgs> linear;
  gpu::BoundKernel<kernels::GatedMulArgs> silu_mul;
  gpu::BoundKernel<kernels::GatedMulArgs> gelu_tanh_mul;
  gpu::BoundKernel<kernels::ResidualAddArgs> residual_add;
  gpu::BoundKernel<kernels::KvWriteArgs> kv_write;
  gpu::BoundKernel<kernels::AttentionArgs> attention;
  gpu::BoundKernel<kernels::GatherRowsArgs> gather_rows;
  gpu::BoundKernel<kernels::ArgmaxArgs> argmax;
  gpu::BoundKernel<kernels::ApplyTableDeltasArgs> apply_table_deltas;
  std::optional<gpu::BoundKernel<kernels::AttentionArgs>> flashinfer;  // of decode steps
};

}  // namespace metrale::engine
