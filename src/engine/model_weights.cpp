// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <metrale/base/error.h>
#include <metrale/engine/model_weights.h>

#include "engine/checkpoint.h"
#include "engine/weight_plan.h"

namespace metrale::engine {
namespace {

using quant::ElementType;

constexpr std::uint64_t kChunkBytes = std::uint64_t{16} << 20;

// Streams one tensor to the device in chunks of whole rows. `tick` is called with the fraction of rows done.
template <class Tick>
void upload(gpu::GpuBackend& gpu, Checkpoint& checkpoint, std::size_t tensor, const PlannedTensor& planned,
            DevicePtr base, const Tick& tick) {
  const Checkpoint::Shape shape = checkpoint.shape(tensor);
  const std::uint64_t row_bytes = shape.columns * quant::element_bytes(planned.stored);
  const std::uint64_t rows_at_once = std::max<std::uint64_t>(1, kChunkBytes / row_bytes);
  for (std::uint64_t row = 0; row < shape.rows;) {
    const std::uint64_t count = std::min(rows_at_once, shape.rows - row);
    gpu.copy_h2d_blocking(base.offset(planned.offset_bytes + row * row_bytes),
                          checkpoint.read_rows(tensor, row, count, planned.stored));
    row += count;
    tick(static_cast<double>(row) / static_cast<double>(shape.rows));
  }
}

}  // namespace

ModelWeights::ModelWeights(gpu::GpuBackend& gpu, const ModelConfig& config,
                           const weights::ModelDirectory& directory, ElementType compute,
                           const Progress& progress) {
  const WeightPlan names = plan_weights(config, ElementType::kBf16);
  Checkpoint checkpoint(config, directory, names);
  // A BF16 computation would round every weight anyway; FP32 keeps them as they are.
  matrix_type_ = compute == ElementType::kBf16 ? ElementType::kBf16 : exact_matrix_type(names, directory);
  const WeightPlan plan = plan_weights(config, matrix_type_);
  if (plan.total_bytes > gpu.free_memory_bytes()) {
    throw OutOfMemory("device", plan.total_bytes, gpu.free_memory_bytes(), "the model's weights do not fit");
  }
  slab_ = gpu::DeviceBuffer(gpu, plan.total_bytes);

  const std::uint64_t total = checkpoint.total_bytes();
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const std::uint64_t own = checkpoint.size_bytes(i);
    upload(gpu, checkpoint, i, plan.tensors[i], slab_.ptr(), [&](double done) {
      const auto bytes = static_cast<std::uint64_t>(done * static_cast<double>(own));
      if (progress && !progress(before + bytes, total)) throw Cancelled("the load was cancelled");
    });
    before += own;
  }
  directory.check_unchanged();
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
