// SPDX-License-Identifier: Apache-2.0
// ModelWeights: the tensors of a model in device memory, in one allocation, each at a multiple
// of 256 bytes. Matrices keep the checkpoint's element type unless the computation is BF16; norms are FP32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/device_ptr.h>
#include <metrale/engine/model_config.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/resource.h>
#include <metrale/quant/element_type.h>
#include <metrale/weights/loader.h>
#include <metrale/weights/model_directory.h>

namespace metrale::engine {

// weight[out_features][in_features], bias[out_features] or null.
struct LinearWeights {
  DevicePtr weight;
  DevicePtr bias;
  std::uint32_t in_features = 0;
  std::uint32_t out_features = 0;
};

struct LayerWeights {
  DevicePtr attn_norm;       // float[hidden], before attention
  DevicePtr attn_post_norm;  // float[hidden] after it, or null
  DevicePtr ffn_norm;        // float[hidden], before the MLP
  DevicePtr ffn_post_norm;   // float[hidden] after it, or null
  DevicePtr q_norm;          // float[head_dim] of every query head, or null
  DevicePtr k_norm;          // float[head_dim] of every key head, or null
  LinearWeights qkv;         // query, key and value heads, one below the other
  LinearWeights o;
  LinearWeights gate_up;  // gate, and up below it
  LinearWeights down;
};

// The element type that a checkpoint computes in when nobody says otherwise: FP32 for FP32 and FP16, else
// BF16.
[[nodiscard]] quant::ElementType default_compute(const ModelConfig& config,
                                                 const weights::ModelDirectory& directory);

struct WeightPlan;

class ModelWeights final : public gpu::ModelResource {
 public:
  // Blocking. Every tensor that the configuration needs must be there with the right shape and an element
  // type of FP32, FP16, BF16, or FP8 (E4M3) with scales: FormatError lists what is missing or wrong. Tensors
  // that nothing needs are named in one warning. Throws OutOfMemory before reading anything; nothing stays
  // allocated after a failure.
  ModelWeights(gpu::GpuBackend& gpu, const ModelConfig& config, const weights::ModelDirectory& directory,
               quant::ElementType compute, const weights::LoadOptions& load = {});

  // How the tensors came.
  [[nodiscard]] const weights::LoadReport& load_report() const { return load_; }

  [[nodiscard]] quant::ElementType matrix_type() const { return matrix_type_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return slab_.size_bytes(); }
  [[nodiscard]] DevicePtr embedding() const { return embedding_; }
  [[nodiscard]] DevicePtr final_norm() const { return final_norm_; }
  // The embedding's matrix where the model ties them.
  [[nodiscard]] const LinearWeights& lm_head() const { return lm_head_; }
  [[nodiscard]] const std::vector<LayerWeights>& layers() const { return layers_; }

 private:
  void take_addresses(const WeightPlan& plan);
  [[nodiscard]] std::string_view do_label() const override { return "model weights"; }
  void do_release(gpu::GpuBackend& gpu) override;

  quant::ElementType matrix_type_ = quant::ElementType::kBf16;
  gpu::DeviceBuffer slab_;
  weights::LoadReport load_;
  DevicePtr embedding_;
  DevicePtr final_norm_;
  LinearWeights lm_head_;
  std::vector<LayerWeights> layers_;
};

}  // namespace metrale::engine
