// SPDX-License-Identifier: Apache-2.0
#include <metrale/base/error.h>
#include <metrale/engine/model_weights.h>

#include "engine/checkpoint.h"
#include "engine/weight_plan.h"

namespace metrale::engine {

using quant::ElementType;

ModelWeights::ModelWeights(gpu::GpuBackend& gpu, const ModelConfig& config,
                           const weights::ModelDirectory& directory, ElementType compute,
                           const weights::LoadOptions& load) {
  const WeightPlan names = plan_weights(config, ElementType::kBf16);
  const Checkpoint checkpoint(config, directory, names);
  // A BF16 computation would round every weight anyway; FP32 keeps them as they are.
  matrix_type_ = compute == ElementType::kBf16 ? ElementType::kBf16 : exact_matrix_type(names, directory);
  const WeightPlan plan = plan_weights(config, matrix_type_);
  if (plan.total_bytes > gpu.free_memory_bytes()) {
    throw OutOfMemory("device", plan.total_bytes, gpu.free_memory_bytes(), "the model's weights do not fit");
  }
  slab_ = gpu::DeviceBuffer(gpu, plan.total_bytes);

  std::vector<weights::TensorLoad> loads;
  std::vector<weights::TensorTarget> targets;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    loads.push_back(checkpoint.load(i));
    targets.push_back(checkpoint.target(i, plan.tensors[i], slab_.ptr()));
  }
  weights::DeviceSink sink(gpu, std::move(targets));
  load_ = weights::load_tensors(directory, loads, sink, load);
  take_addresses(plan);
}

void ModelWeights::take_addresses(const WeightPlan& plan) {
  const auto at = [&](std::uint64_t offset) {
    return offset == kAbsent ? DevicePtr{} : slab_.ptr().offset(offset);
  };
  const auto linear = [&](const PlannedLinear& p) {
    return LinearWeights{at(p.weight), at(p.bias), p.in_features, p.out_features};
  };
  embedding_ = at(plan.embedding);
  final_norm_ = at(plan.final_norm);
  lm_head_ = linear(plan.lm_head);
  for (const PlannedLayer& p : plan.layers) {
    layers_.push_back({.attn_norm = at(p.attn_norm),
                       .attn_post_norm = at(p.attn_post_norm),
                       .ffn_norm = at(p.ffn_norm),
                       .ffn_post_norm = at(p.ffn_post_norm),
                       .q_norm = at(p.q_norm),
                       .k_norm = at(p.k_norm),
                       .qkv = linear(p.qkv),
                       .o = linear(p.o),
                       .gate_up = linear(p.gate_up),
                       .down = linear(p.down)});
  }
}

void ModelWeights::do_release(gpu::GpuBackend&) {
  layers_.clear();
  slab_.release();
}

}  // namespace metrale::engine
