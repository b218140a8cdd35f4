// SPDX-License-Identifier: Apache-2.0
// The kernels of one step, in order. Arguments hold addresses and constants only, so that a captured step
// replays.
#include <cstddef>

#include <metrale/base/checked.h>
#include <metrale/engine/decoder.h>
#include <metrale/quant/convert_elements.h>
#include <metrale/quant/float_convert.h>

#include "engine/decoder_kernels.h"
#include "engine/kv_constants.h"

namespace metrale::engine {

using gpu::ArenaSizes;
using quant::ElementType;

namespace {

std::uint32_t qkv_width(const ModelConfig& config) {
  return (config.num_q_heads + 2 * config.num_kv_heads) * config.head_dim;
}

// As the models were trained: a BF16 model has a BF16 factor.
float embedding_scale(const ModelConfig& config, ElementType compute) {
  const auto scale = static_cast<float>(config.embedding_scale);
  return compute == ElementType::kBf16 ? quant::bf16_to_float(quant::float_to_bf16(scale)) : scale;
}

}  // namespace

// The graph holds everything that a step needs: one launch and one wait a token.
void Decoder::launch_graph(std::uint32_t bucket) {
  auto found = graphs_.find(bucket);
  if (found == graphs_.end()) {
    gpu::CaptureScope capture(*gpu_, stream_.ref());
    launch_step(bucket, bucket);
    gpu_->copy_d2h_async(host_tokens_.span().first(std::size_t{bucket} * sizeof(std::int32_t)),
                         arena_.ptr(&ArenaSizes::sampled_tokens), stream_.ref());
    found = graphs_.emplace(bucket, capture.finish()).first;
  }
  gpu_->launch_graph(found->second.ref(), stream_.ref());
}

void Decoder::launch_step(std::uint32_t max_rows, std::uint32_t max_logit_rows) {
  gpu_->copy_h2d_async_retained(arena_.ptr(&ArenaSizes::step), host_step_.span().first(layout_.total_bytes),
                                stream_.ref());
  launch_table_deltas();
  launch_layers(max_rows);
  if (max_logit_rows != 0) launch_head(max_logit_rows);
}

void Decoder::launch_table_deltas() {
  kernels_->apply_table_deltas(
      stream_.ref(),
      {.num_deltas = step_address(layout_.counts + offsetof(kernels::StepCounts, num_table_deltas)),
       .entries = step_address(layout_.delta_entries),
       .blocks = step_address(layout_.delta_blocks),
       .tables = arena_.ptr(&ArenaSizes::block_tables).address(),
       .table_entries = std::uint64_t{limits_.max_batch_size} * table_stride_,
       .max_deltas = layout_.max_deltas,
       .reserved = 0});
}

void Decoder::launch_layers(std::uint32_t max_rows) {
  const std::uint64_t rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_tokens));
  kernels_->embedding(stream_.ref(), {.rows = rows,
                                      .token_ids = step_address(layout_.token_ids),
                                      .table = weights_->embedding().address(),
                                      .out = arena_.ptr(&ArenaSizes::residual).address(),
                                      .max_rows = max_rows,
                                      .width = config_->hidden_size,
                                      .vocab = config_->vocab_size,
                                      .table_type = weights_->matrix_type(),
                                      .out_type = ElementType::kF32,
                                      .scale = embedding_scale(*config_, options_.compute)});
  launch_rope_tables(max_rows);
  const std::vector<LayerWeights>& layers = weights_->layers();
  launch_norm(rows, arena_.ptr(&ArenaSizes::residual), layers.front().attn_norm,
              arena_.ptr(&ArenaSizes::norm_output), options_.compute, max_rows);
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const bool is_last = layer + 1 == layers.size();
    launch_layer(layer, is_last ? DevicePtr() : layers[layer + 1].attn_norm, max_rows);
  }
}

void Decoder::launch_rope_tables(std::uint32_t max_rows) {
  const std::uint32_t half_dims = config_->head_dim / 2;
  const auto launch = [&](const RopeConfig& rope, DevicePtr inv_freq, DevicePtr table) {
    const RopeScaling& scaling = rope.scaling;
    const bool dynamic = scaling.kind == RopeScalingKind::kDynamic;
    kernels_->rope_table(stream_.ref(),
                         {.rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_tokens)),
                          .positions = step_address(layout_.positions),
                          .inv_freq = inv_freq.address(),
                          .table = table.address(),
                          .max_rows = max_rows,
                          .half_dims = half_dims,
                          .factor = static_cast<float>(scaling.attention_factor),
                          .dynamic_theta = static_cast<float>(rope.theta),
                          .dynamic_factor = static_cast<float>(scaling.factor),
                          .dynamic_from = dynamic ? scaling.original_max_position : 0});
  };
  launch(config_->rope, constants_.ptr(), arena_.ptr(&ArenaSizes::rope_table));
  if (config_->local_rope) {
    launch(*config_->local_rope, constants_.ptr().offset(std::uint64_t{half_dims} * sizeof(float)),
           local_rope_table());
  }
}

DevicePtr Decoder::kv_constant(std::size_t layer, std::size_t offset) const {
  const KvConstantsLayout layout(config_->num_kv_heads, config_->head_dim);
  return constants_.ptr().offset((kv_constants_at_ + layer * layout.layer_floats + offset) * sizeof(float));
}

// Of the query heads: into the basis of rotated keys, or out of that of rotated values.
void Decoder::launch_rotation(DevicePtr heads, DevicePtr diagonal, std::uint32_t stride, bool inverse,
                              std::uint32_t max_rows) {
  kernels_->rotate_heads(stream_.ref(),
                         {.rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_tokens)),
                          .data = heads.address(),
                          .diagonal = diagonal.address(),
                          .max_rows = max_rows,
                          .stride = stride,
                          .num_heads = config_->num_q_heads,
                          .num_kv_heads = config_->num_kv_heads,
                          .head_dim = config_->head_dim,
                          .type = options_.compute,
                          .inverse = inverse ? 1U : 0U,
                          .reserved = 0});
}

DevicePtr Decoder::local_rope_table() const {
  const std::uint64_t floats = std::uint64_t{limits_.max_batch_tokens} * config_->head_dim;
  return arena_.ptr(&ArenaSizes::rope_table).offset(floats * sizeof(float));
}

// Its input is normalised already, as it leaves that of the next one, where there is one.
void Decoder::launch_layer(std::size_t layer, DevicePtr next_norm, std::uint32_t max_rows) {
  const std::uint64_t rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_tokens));
  const LayerWeights& weights = weights_->layers()[layer];
  launch_linear(rows, arena_.ptr(&ArenaSizes::norm_output), weights.qkv, arena_.ptr(&ArenaSizes::qkv_output),
                options_.compute, max_rows);
  launch_attention(layer, max_rows);
  launch_linear(rows, arena_.ptr(&ArenaSizes::attn_output), weights.o, arena_.ptr(&ArenaSizes::branch_output),
                ElementType::kF32, max_rows);
  launch_branch_add(weights.attn_post_norm, weights.ffn_norm, max_rows);
  launch_mlp(weights, max_rows);
  launch_branch_add(weights.ffn_post_norm, next_norm, max_rows);
}

void Decoder::launch_mlp(const LayerWeights& weights, std::uint32_t max_rows) {
  const std::uint64_t rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_tokens));
  const DevicePtr gate = arena_.ptr(&ArenaSizes::expert_gate_up_out);
  const DevicePtr up =
      gate.offset(std::uint64_t{config_->intermediate_size} * quant::element_bytes(options_.compute));
  const std::uint32_t stride =
      weights.gate_up.out_features;  // a row has both, and then their product over gate
  launch_linear(rows, arena_.ptr(&ArenaSizes::norm_output), weights.gate_up, gate, options_.compute,
                max_rows);
  const auto& gated_mul =
      config_->activation == Activation::kSilu ? kernels_->silu_mul : kernels_->gelu_tanh_mul;
  gated_mul(stream_.ref(), {.rows = rows,
                            .gate = gate.address(),
                            .up = up.address(),
                            .out = gate.address(),
                            .max_rows = max_rows,
                            .width = config_->intermediate_size,
                            .in_stride = stride,
                            .out_stride = stride,
                            .type = options_.compute,
                            .reserved = 0});
  launch_linear(rows, gate, weights.down, arena_.ptr(&ArenaSizes::branch_output), ElementType::kF32, max_rows,
                stride);
}

// Each head on its own, in place.
void Decoder::launch_head_norm(DevicePtr heads, std::uint32_t num_heads, DevicePtr weight,
                               std::uint32_t max_rows) {
  const std::uint32_t width = qkv_width(*config_);
  kernels_->rms_norm(stream_.ref(),
                     {.rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_tokens)),
                      .in = heads.address(),
                      .weight = weight.address(),
                      .out = heads.address(),
                      .max_rows = max_rows,
                      .width = config_->head_dim,
                      .in_stride = width,
                      .out_stride = width,
                      .in_type = options_.compute,
                      .weight_type = ElementType::kF32,
                      .out_type = options_.compute,
                      .epsilon = config_->rms_norm_eps,
                      .groups = num_heads});
}

// Queries and keys as attention takes them: normalised where the model does that, and turned by their
// positions.
void Decoder::launch_rope(std::size_t layer, DevicePtr q, DevicePtr k, std::uint32_t max_rows) {
  if (config_->qk_norm) {
    launch_head_norm(q, config_->num_q_heads, weights_->layers()[layer].q_norm, max_rows);
    launch_head_norm(k, config_->num_kv_heads, weights_->layers()[layer].k_norm, max_rows);
  }
  const bool is_local = config_->layer_windows[layer] != 0 && config_->local_rope;
  const DevicePtr table = is_local ? local_rope_table() : arena_.ptr(&ArenaSizes::rope_table);
  // The heads of both lie side by side.
  kernels_->rope(stream_.ref(),
                 {.rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_tokens)),
                  .table = table.address(),
                  .data = q.address(),
                  .max_rows = max_rows,
                  .stride = qkv_width(*config_),
                  .num_heads = config_->num_q_heads + config_->num_kv_heads,
                  .head_dim = config_->head_dim,
                  .rotary_dim = config_->head_dim,
                  .type = options_.compute});
}

void Decoder::show_probe(std::size_t layer) {
  const auto* counts = reinterpret_cast<const kernels::StepCounts*>(host_step_.data() + layout_.counts);
  const std::size_t elements = std::size_t{counts->num_tokens} * qkv_width(*config_);
  std::vector<std::byte> stored(elements * quant::element_bytes(options_.compute));
  gpu_->copy_d2h_on_stream(stored, arena_.ptr(&ArenaSizes::qkv_output), stream_.ref());
  probed_.resize(elements);
  quant::convert_elements(stored, options_.compute, std::as_writable_bytes(std::span(probed_)),
                          ElementType::kF32);
  probe_->take(static_cast<std::uint32_t>(layer), counts->num_tokens, probed_);
}

void Decoder::launch_kv_write(std::size_t layer, DevicePtr k, DevicePtr v, std::uint32_t max_rows) {
  const LayerId kv_layer(static_cast<LayerId::Value>(layer));
  const quant::KvDtype dtype = cache_->dtype_for_layer(kv_layer);
  const KvConstantsLayout at(config_->num_kv_heads, config_->head_dim);
  const std::uint64_t mean = has_kv_mean_ ? kv_constant(layer, at.k_mean).address() : 0;
  kernels_->kv_write(stream_.ref(),
                     {.rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_tokens)),
                      .k = k.address(),
                      .v = v.address(),
                      .slots = step_address(layout_.slots),
                      .k_pool = cache_->k_pool_ptr(kv_layer).address(),
                      .v_pool = cache_->v_pool_ptr(kv_layer).address(),
                      .max_rows = max_rows,
                      .stride = qkv_width(*config_),
                      .num_kv_heads = config_->num_kv_heads,
                      .head_dim = config_->head_dim,
                      .block_size = limits_.block_size,
                      .num_blocks = cache_->num_blocks(),
                      .type = options_.compute,
                      .k_format = dtype.k,
                      .v_format = dtype.v,
                      .reserved = 0,
                      .k_params = {.scales = kv_constant(layer, at.k_scales).address(),
                                   .diagonal = kv_constant(layer, at.k_diagonal).address(),
                                   .mean = mean},
                      .v_params = {.scales = kv_constant(layer, at.v_scales).address(),
                                   .diagonal = kv_constant(layer, at.v_diagonal).address(),
                                   .mean = 0}});
}

void Decoder::launch_attention(std::size_t layer, std::uint32_t max_rows) {
  const LayerId kv_layer(static_cast<LayerId::Value>(layer));
  const quant::KvDtype dtype = cache_->dtype_for_layer(kv_layer);
  const std::uint32_t width = qkv_width(*config_);
  const std::uint64_t element = quant::element_bytes(options_.compute);
  const DevicePtr q = arena_.ptr(&ArenaSizes::qkv_output);
  const DevicePtr k = q.offset(std::uint64_t{config_->num_q_heads} * config_->head_dim * element);
  const DevicePtr v = k.offset(std::uint64_t{config_->num_kv_heads} * config_->head_dim * element);
  launch_rope(layer, q, k, max_rows);
  if (probe_ != nullptr) show_probe(layer);
  launch_kv_write(layer, k, v, max_rows);
  const KvConstantsLayout at(config_->num_kv_heads, config_->head_dim);
  const bool k_rotated = quant::kv_format_info(dtype.k).rotated;
  const bool v_rotated = quant::kv_format_info(dtype.v).rotated;
  if (k_rotated) launch_rotation(q, kv_constant(layer, at.q_diagonal), width, /*inverse=*/false, max_rows);
  // A step of a graph has one token a sequence.
  const auto& attention = kernels_->attention_of(has_tokens_, config_->layer_windows[layer]);
  attention(stream_.ref(), {.counts = step_address(layout_.counts),
                            .q = q.address(),
                            .out = arena_.ptr(&ArenaSizes::attn_output).address(),
                            .k_pool = cache_->k_pool_ptr(kv_layer).address(),
                            .v_pool = cache_->v_pool_ptr(kv_layer).address(),
                            .block_tables = arena_.ptr(&ArenaSizes::block_tables).address(),
                            .query_starts = step_address(layout_.query_starts),
                            .context_lens = step_address(layout_.context_lens),
                            .table_rows = step_address(layout_.table_rows),
                            .workspace = arena_.ptr(&ArenaSizes::attention_workspace).address(),
                            .max_tokens = max_rows,
                            .max_seqs = layout_.max_seqs,
                            .table_stride = table_stride_,
                            .workspace_rows = split_rows_,
                            .num_q_heads = config_->num_q_heads,
                            .num_kv_heads = config_->num_kv_heads,
                            .head_dim = config_->head_dim,
                            .block_size = limits_.block_size,
                            .q_stride = width,
                            .out_stride = config_->num_q_heads * config_->head_dim,
                            .type = options_.compute,
                            .k_format = dtype.k,
                            .v_format = dtype.v,
                            .scale = static_cast<float>(config_->attention_scale),
                            .window = config_->layer_windows[layer],
                            .reserved = 0,
                            .k_scales = kv_constant(layer, at.k_scales).address(),
                            .v_scales = kv_constant(layer, at.v_scales).address()});
  if (v_rotated) {
    launch_rotation(arena_.ptr(&ArenaSizes::attn_output), kv_constant(layer, at.out_diagonal),
                    config_->num_q_heads * config_->head_dim, /*inverse=*/true, max_rows);
  }
}

void Decoder::launch_head(std::uint32_t max_logit_rows) {
  const std::uint64_t rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_logit_rows));
  // The branch output is free by now.
  kernels_->gather_rows(stream_.ref(), {.rows = rows,
                                        .row_ids = step_address(layout_.logit_rows),
                                        .in = arena_.ptr(&ArenaSizes::residual).address(),
                                        .out = arena_.ptr(&ArenaSizes::branch_output).address(),
                                        .max_rows = max_logit_rows,
                                        .width = config_->hidden_size,
                                        .in_rows = limits_.max_batch_tokens,
                                        .type = ElementType::kF32});
  launch_norm(rows, arena_.ptr(&ArenaSizes::branch_output), weights_->final_norm(),
              arena_.ptr(&ArenaSizes::norm_output), options_.compute, max_logit_rows);
  launch_linear(rows, arena_.ptr(&ArenaSizes::norm_output), weights_->lm_head(),
                arena_.ptr(&ArenaSizes::logits), ElementType::kF32, max_logit_rows);
  kernels_->argmax(stream_.ref(), {.rows = rows,
                                   .logits = arena_.ptr(&ArenaSizes::logits).address(),
                                   .tokens = arena_.ptr(&ArenaSizes::sampled_tokens).address(),
                                   .max_rows = max_logit_rows,
                                   .vocab = config_->vocab_size});
}

void Decoder::launch_norm(std::uint64_t rows, DevicePtr in, DevicePtr weight, DevicePtr out,
                          ElementType out_type, std::uint32_t max_rows) {
  kernels_->rms_norm(stream_.ref(), {.rows = rows,
                                     .in = in.address(),
                                     .weight = weight.address(),
                                     .out = out.address(),
                                     .max_rows = max_rows,
                                     .width = config_->hidden_size,
                                     .in_stride = config_->hidden_size,
                                     .out_stride = config_->hidden_size,
                                     .in_type = ElementType::kF32,
                                     .weight_type = ElementType::kF32,
                                     .out_type = out_type,
                                     .epsilon = config_->rms_norm_eps});
}

void Decoder::launch_linear(std::uint64_t rows, DevicePtr in, const LinearWeights& weights, DevicePtr out,
                            ElementType out_type, std::uint32_t max_rows, std::uint32_t in_stride) {
  // Whatever a product reads or writes has these rows, except the logits.
  const bool is_head = out == arena_.ptr(&ArenaSizes::logits);
  const std::uint32_t room_rows = is_head ? max_logit_rows_ : round_up(limits_.max_batch_tokens, kRowTile);
  kernels_->linear(stream_.ref(),
                   {.rows = rows,
                    .in = in.address(),
                    .weight = weights.weight.address(),
                    .bias = weights.bias.address(),
                    .out = out.address(),
                    .max_rows = max_rows,
                    .in_features = weights.in_features,
                    .out_features = weights.out_features,
                    .in_stride = in_stride == 0 ? weights.in_features : in_stride,
                    .out_stride = weights.out_features,
                    .in_type = options_.compute,
                    .weight_type = weights_->matrix_type(),
                    .out_type = out_type,
                    .workspace = arena_.ptr(&ArenaSizes::linear_workspace).address(),
                    .workspace_bytes = static_cast<std::uint32_t>(arena_.sizes().linear_workspace),
                    .room_rows = room_rows});
}

// Adds what attention or the MLP gave to the residual stream, normalised before where the model does that,
// and normalises the sums for what reads them next, where something does.
void Decoder::launch_branch_add(DevicePtr post_norm, DevicePtr next_norm, std::uint32_t max_rows) {
  const std::uint64_t rows = step_address(layout_.counts + offsetof(kernels::StepCounts, num_tokens));
  const DevicePtr branch = arena_.ptr(&ArenaSizes::branch_output);
  const DevicePtr residual = arena_.ptr(&ArenaSizes::residual);
  if (!post_norm.is_null()) launch_norm(rows, branch, post_norm, branch, ElementType::kF32, max_rows);
  if (next_norm.is_null()) {
    kernels_->residual_add(stream_.ref(), {.rows = rows,
                                           .in = branch.address(),
                                           .accum = residual.address(),
                                           .max_rows = max_rows,
                                           .width = config_->hidden_size,
                                           .in_type = ElementType::kF32,
                                           .reserved = 0});
    return;
  }
  kernels_->add_rms_norm(stream_.ref(), {.rows = rows,
                                         .in = branch.address(),
                                         .accum = residual.address(),
                                         .weight = next_norm.address(),
                                         .out = arena_.ptr(&ArenaSizes::norm_output).address(),
                                         .max_rows = max_rows,
                                         .width = config_->hidden_size,
                                         .out_type = options_.compute,
                                         .epsilon = config_->rms_norm_eps});
}

}  // namespace metrale::engine
