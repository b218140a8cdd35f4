// SPDX-License-Identifier: Apache-2.0
#include "engine/weight_plan.h"

#include <utility>

#include <fmt/format.h>

#include <metrale/base/checked.h>

namespace metrale::engine {
namespace {

constexpr std::uint64_t kAlignment = 256;

class Planner {
 public:
  Planner(const ModelConfig& config, quant::ElementType matrix_type)
      : config_(&config), matrix_type_(matrix_type) {}

  std::uint64_t matrix(std::string name, std::uint64_t rows, std::uint64_t columns) {
    return place(std::move(name), {rows, columns}, matrix_type_);
  }

  // Norms are small and exact in FP32 whatever the checkpoint has.
  std::uint64_t norm(std::string name, std::uint32_t width) {
    const std::uint64_t at = place(std::move(name), {width}, quant::ElementType::kF32);
    tensors_.back().added = config_->norm_offset;
    return at;
  }

  // Tensors that one product reads as one matrix: their rows follow each other without a gap.
  PlannedLinear linear(const std::string& prefix, std::uint32_t in_features, bool has_bias,
                       const std::vector<std::pair<std::string, std::uint32_t>>& parts) {
    PlannedLinear planned{.in_features = in_features};
    align();
    for (const auto& [name, rows] : parts) {
      const std::uint64_t at = append(prefix + name + ".weight", {rows, in_features}, matrix_type_);
      if (planned.weight == kAbsent) planned.weight = at;
      planned.out_features += rows;
    }
    align();
    for (const auto& [name, rows] : parts) {
      if (!has_bias) break;
      const std::uint64_t at = append(prefix + name + ".bias", {rows}, matrix_type_);
      if (planned.bias == kAbsent) planned.bias = at;
    }
    return planned;
  }

  void finish(WeightPlan& plan) {
    align();
    plan.tensors = std::move(tensors_);
    plan.total_bytes = next_;
  }

 private:
  void align() { next_ = round_up(next_, kAlignment); }

  std::uint64_t place(std::string name, std::vector<std::uint64_t> shape, quant::ElementType type) {
    align();
    return append(std::move(name), std::move(shape), type);
  }

  std::uint64_t append(std::string name, std::vector<std::uint64_t> shape, quant::ElementType type) {
    tensors_.push_back(
        {.name = std::move(name), .shape = std::move(shape), .stored = type, .offset_bytes = next_});
    return std::exchange(next_, checked_add(next_, tensors_.back().size_bytes()));
  }

  const ModelConfig* config_;
  quant::ElementType matrix_type_;
  std::vector<PlannedTensor> tensors_;
  std::uint64_t next_ = 0;
};

// The norm that Llama calls post_attention_layernorm stands before the MLP; Gemma's of that name stands after
// attention.
void plan_ffn_norms(Planner& planner, const ModelConfig& config, const std::string& prefix,
                    PlannedLayer& layer) {
  const auto norm = [&](const char* name) { return planner.norm(prefix + name, config.hidden_size); };
  if (!config.post_norms) {
    layer.ffn_norm = norm("post_attention_layernorm.weight");
    return;
  }
  layer.attn_post_norm = norm("post_attention_layernorm.weight");
  layer.ffn_norm = norm("pre_feedforward_layernorm.weight");
  layer.ffn_post_norm = norm("post_feedforward_layernorm.weight");
}

PlannedLayer plan_layer(Planner& planner, const ModelConfig& config, std::uint32_t index) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const std::uint32_t q_width = config.num_q_heads * config.head_dim;
  const std::uint32_t kv_width = config.num_kv_heads * config.head_dim;
  PlannedLayer layer;
  layer.attn_norm = planner.norm(prefix + "input_layernorm.weight", config.hidden_size);
  layer.qkv = planner.linear(prefix + "self_attn.", config.hidden_size, config.qkv_bias,
                             {{"q_proj", q_width}, {"k_proj", kv_width}, {"v_proj", kv_width}});
  if (config.qk_norm) {
    layer.q_norm = planner.norm(prefix + "self_attn.q_norm.weight", config.head_dim);
    layer.k_norm = planner.norm(prefix + "self_attn.k_norm.weight", config.head_dim);
  }
  layer.o = planner.linear(prefix + "self_attn.", q_width, config.o_bias, {{"o_proj", config.hidden_size}});
  plan_ffn_norms(planner, config, prefix, layer);
  layer.gate_up =
      planner.linear(prefix + "mlp.", config.hidden_size, config.mlp_bias,
                     {{"gate_proj", config.intermediate_size}, {"up_proj", config.intermediate_size}});
  layer.down = planner.linear(prefix + "mlp.", config.intermediate_size, config.mlp_bias,
                              {{"down_proj", config.hidden_size}});
  return layer;
}

}  // namespace

std::uint64_t PlannedTensor::num_elems() const {
  std::uint64_t product = 1;
  for (const std::uint64_t dim : shape) product = checked_mul(product, dim);
  return product;
}

WeightPlan plan_weights(const ModelConfig& config, quant::ElementType matrix_type) {
  Planner planner(config, matrix_type);
  WeightPlan plan;
  plan.embedding = planner.matrix(std::string(kEmbeddingName), config.vocab_size, config.hidden_size);
  for (std::uint32_t i = 0; i < config.num_layers; ++i) plan.layers.push_back(plan_layer(planner, config, i));
  plan.final_norm = planner.norm("model.norm.weight", config.hidden_size);
  plan.lm_head = {
      .weight = plan.embedding, .in_features = config.hidden_size, .out_features = config.vocab_size};
  if (!config.tie_word_embeddings) {
    plan.lm_head.weight = planner.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  }
  planner.finish(plan);
  return plan;
}

}  // namespace metrale::engine
