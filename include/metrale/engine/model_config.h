// SPDX-License-Identifier: Apache-2.0
// ModelConfig: what config.json (and generation_config.json) say about a Llama-family model, checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <metrale/quant/element_type.h>

namespace metrale::engine {

enum class RopeScalingKind : std::uint8_t { kNone, kLinear, kLlama3 };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;
  double low_freq_factor = 1;                  // llama3
  double high_freq_factor = 4;                 // llama3
  std::uint32_t original_max_position = 8192;  // llama3
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  std::uint32_t hidden_size = 0;
  std::uint32_t intermediate_size = 0;
  std::uint32_t num_layers = 0;
  std::uint32_t num_q_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t vocab_size = 0;
  std::uint32_t max_position_embeddings = 0;
  float rms_norm_eps = 0;
  double rope_theta = 10'000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::optional<quant::ElementType> dtype;  // as declared; the tensors have the last word
  std::optional<std::int32_t> bos_id;
  std::vector<std::int32_t> eos_ids;  // any of them ends a text; generation_config.json wins over config.json
};

// `text` is a config.json; `path` is named in errors. Throws FormatError (which field, what was expected),
// Unsupported (an architecture, activation or rope type that this engine does not have).
[[nodiscard]] ModelConfig parse_model_config(const std::string& text, const std::string& path);

// Reads config.json and, where present, generation_config.json of a model directory. Throws also IoError.
[[nodiscard]] ModelConfig load_model_config(const std::string& directory);

// float[head_dim / 2]: the rotation per position of each pair, scaling applied.
[[nodiscard]] std::vector<float> rope_inverse_frequencies(const ModelConfig& config);

}  // namespace metrale::engine
