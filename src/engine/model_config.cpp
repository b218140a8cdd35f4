// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/engine/model_config.h>
#include <metrale/sampling/params.h>

#include "engine/architecture.h"
#include "engine/json_fields.h"
#include "engine/rope_fields.h"

namespace metrale::engine {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 16U << 20;

Activation read_activation(const JsonFields& fields, std::string_view otherwise) {
  // Gemma spells it hidden_activation, and some of its files have both.
  const char* field = fields.find("hidden_activation") != nullptr ? "hidden_activation" : "hidden_act";
  const std::string name = fields.text(field).value_or(std::string(otherwise));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  fields.refuse(field);
}

// "num_key_value_heads" absent means the architecture's default, null as many as there are query heads.
std::uint32_t read_kv_heads(const JsonFields& fields, const Architecture& architecture,
                            std::uint32_t q_heads) {
  if (const auto given = fields.count("num_key_value_heads")) return *given;
  const bool has_default = architecture.num_kv_heads != 0 && !fields.is_null("num_key_value_heads");
  return has_default ? architecture.num_kv_heads : q_heads;
}

void read_heads(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  config.num_q_heads = architecture.num_q_heads != 0
                           ? fields.count("num_attention_heads").value_or(architecture.num_q_heads)
                           : fields.required_count("num_attention_heads");
  config.num_kv_heads = read_kv_heads(fields, architecture, config.num_q_heads);
  if (config.num_q_heads % config.num_kv_heads != 0) {
    fields.fail("num_key_value_heads",
                fmt::format("a divisor of num_attention_heads ({})", config.num_q_heads));
  }
  auto head_dim = fields.count("head_dim");
  if (!head_dim && architecture.head_dim != 0 && !fields.is_null("head_dim"))
    head_dim = architecture.head_dim;
  if (!head_dim && config.hidden_size % config.num_q_heads != 0) {
    fields.fail("num_attention_heads",
                fmt::format("a divisor of hidden_size ({}) where head_dim is absent", config.hidden_size));
  }
  config.head_dim = head_dim.value_or(config.hidden_size / config.num_q_heads);
  if (config.head_dim % 2 != 0 || config.head_dim > 512) fields.fail("head_dim", "an even number up to 512");
  config.attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
}

void read_sizes(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  config.hidden_size = fields.required_count("hidden_size");
  config.intermediate_size = fields.required_count("intermediate_size");
  config.num_layers = fields.required_count("num_hidden_layers");
  if (config.num_layers > 65'535) fields.fail("num_hidden_layers", "at most 65535");
  config.vocab_size = architecture.vocab_size != 0
                          ? fields.count("vocab_size").value_or(architecture.vocab_size)
                          : fields.required_count("vocab_size");
  if (config.vocab_size > sampling::kMaxVocabSize) {
    fields.fail("vocab_size", fmt::format("at most {}", sampling::kMaxVocabSize));
  }
  config.max_position_embeddings =
      fields.count("max_position_embeddings").value_or(architecture.max_positions);
  config.rms_norm_eps = static_cast<float>(fields.positive("rms_norm_eps", 1e-6));
  if (config.rms_norm_eps <= 0) fields.fail("rms_norm_eps", "a number above 0 in FP32");
}

std::optional<quant::ElementType> read_dtype(const JsonFields& fields) {
  for (const std::string_view name : {"dtype", "torch_dtype"}) {
    const auto declared = fields.text(name);
    if (!declared) continue;
    if (*declared == "bfloat16") return quant::ElementType::kBf16;
    if (*declared == "float16") return quant::ElementType::kF16;
    if (*declared == "float32") return quant::ElementType::kF32;
    fields.fail(name, "bfloat16, float16 or float32");
  }
  return std::nullopt;
}

// compressed-tensors: every group's weights are floats of 8 bits.
bool are_compressed_fp8(const JsonFields& quantization) {
  const nlohmann::json* groups = quantization.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) return false;
  for (const auto& group : *groups) {
    if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) return false;
    const nlohmann::json& weights = group["weights"];
    const auto type = weights.find("type");
    const auto bits = weights.find("num_bits");
    if (type == weights.end() || bits == weights.end() || *type != "float" || *bits != 8) return false;
  }
  return true;
}

void read_quantization(const JsonFields& fields, ModelConfig& config) {
  if (fields.find("quantization_config") == nullptr) return;
  const JsonFields quantization = fields.object("quantization_config");
  const std::string method = quantization.text("quant_method").value_or("");
  const bool is_fp8 = method == "fp8" || method == "fbgemm_fp8" ||
                      (method == "modelopt" && quantization.text("quant_algo").value_or("") == "FP8") ||
                      (method == "compressed-tensors" && are_compressed_fp8(quantization));
  if (!is_fp8) fields.refuse("quantization_config");
  const nlohmann::json* tile = quantization.find("weight_block_size");
  if (tile == nullptr) return;
  const auto is_size = [](const nlohmann::json& n) {
    return n.is_number_unsigned() && n.get<std::uint64_t>() >= 1 && n.get<std::uint64_t>() <= 65'536;
  };
  if (!tile->is_array() || tile->size() != 2 || !is_size((*tile)[0]) || !is_size((*tile)[1])) {
    quantization.fail("weight_block_size", "two whole numbers from 1 to 65536");
  }
  config.fp8_tile = {.rows = (*tile)[0].get<std::uint32_t>(), .columns = (*tile)[1].get<std::uint32_t>()};
}

void check_token_ids(const JsonFields& fields, std::string_view name, const std::vector<std::int32_t>& ids,
                     std::uint32_t vocab_size) {
  for (const std::int32_t id : ids) {
    if (static_cast<std::uint32_t>(id) >= vocab_size) {
      fields.fail(name, fmt::format("token ids below vocab_size ({})", vocab_size));
    }
  }
}

void read_special_tokens(const JsonFields& fields, ModelConfig& config) {
  const std::vector<std::int32_t> bos = fields.token_ids("bos_token_id");
  check_token_ids(fields, "bos_token_id", bos, config.vocab_size);
  if (!bos.empty()) config.bos_id = bos.front();
  const std::vector<std::int32_t> eos = fields.token_ids("eos_token_id");
  check_token_ids(fields, "eos_token_id", eos, config.vocab_size);
  if (!eos.empty()) config.eos_ids = eos;
}

std::optional<float> read_number(const JsonFields& fields, std::string_view name, double low, double high) {
  const auto value = fields.number(name);
  if (value && (*value < low || *value > high)) {
    fields.fail(name, fmt::format("a number from {} to {}", low, high));
  }
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

void read_generation_defaults(const JsonFields& fields, GenerationDefaults& defaults) {
  defaults.repetition_penalty = read_number(fields, "repetition_penalty", 1e-3, 1e3);
  // Without do_sample transformers takes the most likely token and ignores the rest.
  if (!fields.boolean("do_sample").value_or(false)) return;
  defaults.temperature = read_number(fields, "temperature", 0, 100).value_or(1.0F);
  if (const auto top_k = fields.count("top_k", 0)) defaults.top_k = static_cast<std::int32_t>(*top_k);
  defaults.top_p = read_number(fields, "top_p", 0, 1);
  defaults.min_p = read_number(fields, "min_p", 0, 1);
}

}  // namespace

std::uint32_t ModelConfig::max_positions() const {
  if (rope.scaling.kind != RopeScalingKind::kDynamic) return max_position_embeddings;
  const double reach = max_position_embeddings * rope.scaling.factor;
  return static_cast<std::uint32_t>(std::min(reach, 2147483647.0));
}

std::uint32_t ModelConfig::resolve_max_seq_len(std::uint32_t asked) const {
  if (asked > max_positions()) {
    throw InvalidArgument(
        fmt::format("max_seq_len {} is beyond the {} positions of the model (max_position_embeddings); ask "
                    "for at most that",
                    asked, max_positions()));
  }
  return asked == 0 ? max_position_embeddings : asked;
}

ModelConfig parse_model_config(const std::string& text, const std::string& path) {
  const nlohmann::json json = parse_json_object(text, path);
  const JsonFields top(json, path);
  const Architecture& architecture = find_architecture(top, path);
  ModelConfig config;
  config.architecture = architecture.name;
  // A model with other inputs keeps its decoder's fields in an object of their own.
  const bool is_text_part = top.find("text_config") != nullptr;
  const JsonFields fields = is_text_part ? top.object("text_config") : top;
  read_sizes(fields, architecture, config);
  read_heads(fields, architecture, config);
  config.activation = read_activation(fields, architecture.activation);
  const LayerRopes ropes = read_rope(fields, path, architecture.rope_theta, config.max_position_embeddings);
  config.rope = ropes.whole;
  config.local_rope = ropes.local;
  config.tie_word_embeddings =
      fields.boolean("tie_word_embeddings").value_or(architecture.tie_word_embeddings);
  config.layer_windows.assign(config.num_layers, 0);
  architecture.read(fields, config);
  read_quantization(top, config);
  config.dtype = read_dtype(top);
  read_special_tokens(fields, config);
  if (is_text_part) read_special_tokens(top, config);
  return config;
}

ModelConfig load_model_config(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "config.json").string();
  ModelConfig config = parse_model_config(read_text_file(path, kMaxConfigBytes), path);
  const std::string generation = (std::filesystem::path(directory) / "generation_config.json").string();
  if (std::filesystem::exists(generation)) {
    const nlohmann::json json = parse_json_object(read_text_file(generation, kMaxConfigBytes), generation);
    const JsonFields fields(json, generation);
    read_special_tokens(fields, config);
    read_generation_defaults(fields, config.generation);
  }
  return config;
}

}  // namespace metrale::engine
