// SPDX-License-Identifier: Apache-2.0
#include "engine/architecture.h"

#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::engine {
namespace {

// The layers whose "layer_types" entry is "sliding_attention" get `window`. False where there is no such
// list.
bool read_layer_types(const JsonFields& fields, std::uint32_t window, ModelConfig& config) {
  const nlohmann::json* types = fields.find("layer_types");
  if (types == nullptr) return false;
  const std::string expected =
      fmt::format("an array of {} times \"full_attention\" or \"sliding_attention\"", config.num_layers);
  if (!types->is_array() || types->size() != config.num_layers) fields.fail("layer_types", expected);
  for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const nlohmann::json& type = (*types)[layer];
    if (type == "sliding_attention") {
      if (window == 0) {
        fields.fail("layer_types",
                    "no sliding layers, since sliding_window or use_sliding_window says there is no window");
      }
      config.layer_windows[layer] = window;
    } else if (type != "full_attention") {
      fields.fail("layer_types", expected);
    }
  }
  return true;
}

void read_llama(const JsonFields& fields, ModelConfig& config) {
  config.qkv_bias = fields.boolean("attention_bias").value_or(false);
  config.o_bias = config.qkv_bias;
  config.mlp_bias = fields.boolean("mlp_bias").value_or(false);
}

void read_mistral(const JsonFields& fields, ModelConfig& config) {
  // Absent is not null here: the first means the default, the second no window.
  const std::uint32_t window =
      fields.is_null("sliding_window") ? 0 : fields.count("sliding_window").value_or(4096);
  config.layer_windows.assign(config.num_layers, window);
}

void read_qwen_windows(const JsonFields& fields, ModelConfig& config) {
  const bool has_window =
      fields.boolean("use_sliding_window").value_or(false) && !fields.is_null("sliding_window");
  const std::uint32_t window = has_window ? fields.count("sliding_window").value_or(4096) : 0;
  if (read_layer_types(fields, window, config)) return;
  const std::uint32_t full_layers = fields.count("max_window_layers", 0).value_or(28);
  for (std::uint32_t layer = full_layers; layer < config.num_layers; ++layer)
    config.layer_windows[layer] = window;
}

void read_qwen2(const JsonFields& fields, ModelConfig& config) {
  config.qkv_bias = true;
  read_qwen_windows(fields, config);
}

void read_qwen3(const JsonFields& fields, ModelConfig& config) {
  config.qkv_bias = fields.boolean("attention_bias").value_or(false);
  config.o_bias = config.qkv_bias;
  config.qk_norm = true;
  read_qwen_windows(fields, config);
}

void read_gemma3(const JsonFields& fields, ModelConfig& config) {
  for (const char* name : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (fields.find(name) != nullptr) fields.refuse(name);
  }
  if (fields.boolean("use_bidirectional_attention").value_or(false))
    fields.refuse("use_bidirectional_attention");
  config.qkv_bias = fields.boolean("attention_bias").value_or(false);
  config.o_bias = config.qkv_bias;
  config.qk_norm = true;
  config.post_norms = true;
  config.norm_offset = 1;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.attention_scale = 1 / std::sqrt(fields.positive("query_pre_attn_scalar", 256));
  const double local_theta = fields.positive("rope_local_base_freq", 10'000);
  if (local_theta < 1) fields.fail("rope_local_base_freq", "a number of at least 1");
  if (!config.local_rope) config.local_rope = RopeConfig{.theta = local_theta, .scaling = {}};
  const std::uint32_t window = fields.count("sliding_window").value_or(4096);
  if (read_layer_types(fields, window, config)) return;
  const std::uint32_t pattern = fields.count("sliding_window_pattern").value_or(6);
  for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if ((layer + 1) % pattern != 0) config.layer_windows[layer] = window;
  }
}

constexpr Architecture kGemma3{.name = "Gemma3ForCausalLM",
                               .model_type = "gemma3_text",
                               .num_q_heads = 8,
                               .num_kv_heads = 4,
                               .head_dim = 256,
                               .vocab_size = 262'208,
                               .max_positions = 131'072,
                               .rope_theta = 1'000'000,
                               .tie_word_embeddings = true,
                               .activation = "gelu_pytorch_tanh",
                               .read = read_gemma3};

constexpr Architecture gemma3_with_images() {
  Architecture architecture = kGemma3;
  architecture.name = "Gemma3ForConditionalGeneration";
  architecture.model_type = "gemma3";
  return architecture;
}

constexpr std::array kArchitectures{
    Architecture{.name = "LlamaForCausalLM", .model_type = "llama", .read = read_llama},
    Architecture{.name = "MistralForCausalLM",
                 .model_type = "mistral",
                 .num_kv_heads = 8,
                 .max_positions = 131'072,
                 .read = read_mistral},
    Architecture{.name = "Qwen2ForCausalLM",
                 .model_type = "qwen2",
                 .num_kv_heads = 32,
                 .max_positions = 32'768,
                 .read = read_qwen2},
    Architecture{.name = "Qwen3ForCausalLM",
                 .model_type = "qwen3",
                 .num_kv_heads = 32,
                 .head_dim = 128,
                 .max_positions = 32'768,
                 .read = read_qwen3},
    kGemma3,
    gemma3_with_images(),
};

}  // namespace

const Architecture& find_architecture(const JsonFields& fields, const std::string& path) {
  std::string name;
  if (const nlohmann::json* list = fields.find("architectures")) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      fields.fail("architectures", "an array with one name");
    }
    name = list->front().get<std::string>();
  }
  const std::string model_type = fields.text("model_type").value_or("");
  if (name.empty() && model_type.empty()) fields.fail("architectures", "an array with one name");
  std::vector<std::string_view> names;
  for (const Architecture& architecture : kArchitectures) {
    const bool found = name.empty() ? model_type == architecture.model_type : name == architecture.name;
    if (found && !model_type.empty() && model_type != architecture.model_type) {
      fields.fail("model_type",
                  fmt::format("\"{}\", which {} has", architecture.model_type, architecture.name));
    }
    if (found) return architecture;
    names.push_back(architecture.name);
  }
  throw Unsupported(fmt::format("'{}': this engine", path),
                    fmt::format("architecture \"{}\" (it has: {})", name.empty() ? model_type : name,
                                fmt::join(names, ", ")));
}

}  // namespace metrale::engine
