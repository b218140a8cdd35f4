// SPDX-License-Identifier: Apache-2.0
// WeightPlan: which tensors a model needs, and where each lies in the one allocation. A pure
// function of the configuration and the element type of the matrices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/engine/model_config.h>
#include <metrale/quant/element_type.h>

namespace metrale::engine {

struct PlannedTensor {
  std::string name;                                       // as in a checkpoint of a plain decoder
  std::vector<std::uint64_t> shape;                       // what the checkpoint must have
  quant::ElementType stored = quant::ElementType::kBf16;  // element type in device memory
  std::uint64_t offset_bytes = 0;                         // from the start of the allocation
  float added = 0;                                        // to each element, before it is rounded

  [[nodiscard]] std::uint64_t num_elems() const;
  [[nodiscard]] std::uint64_t size_bytes() const { return num_elems() * quant::element_bytes(stored); }
};

// One layer's offsets; a bias that the model lacks is kAbsent.
inline constexpr std::uint64_t kAbsent = ~std::uint64_t{0};
struct PlannedLinear {
  std::uint64_t weight = kAbsent;
  std::uint64_t bias = kAbsent;
  std::uint32_t in_features = 0;
  std::uint32_t out_features = 0;
};
struct PlannedLayer {
  std::uint64_t attn_norm = kAbsent;
  std::uint64_t attn_post_norm = kAbsent;
  std::uint64_t ffn_norm = kAbsent;
  std::uint64_t ffn_post_norm = kAbsent;
  std::uint64_t q_norm = kAbsent;
  std::uint64_t k_norm = kAbsent;
  PlannedLinear qkv, o, gate_up, down;
};

struct WeightPlan {
  std::vector<PlannedTensor> tensors;
  std::uint64_t embedding = kAbsent;
  std::uint64_t final_norm = kAbsent;
  PlannedLinear lm_head;
  std::vector<PlannedLayer> layers;
  std::uint64_t total_bytes = 0;
};

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";

[[nodiscard]] WeightPlan plan_weights(const ModelConfig& config, quant::ElementType matrix_type);

}  // namespace metrale::engine
