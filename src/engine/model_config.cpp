// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <filesystem>
#include <numbers>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/engine/model_config.h>
#include <metrale/sampling/params.h>

#include "engine/json_fields.h"

namespace metrale::engine {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 16U << 20;

void read_architecture(const JsonFields& fields, const std::string& path, ModelConfig& config) {
  const nlohmann::json* list = fields.find("architectures");
  if (list != nullptr) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      fields.fail("architectures", "an array with one name");
    }
    config.architecture = list->front().get<std::string>();
  } else if (fields.text("model_type") == "llama") {
    config.architecture = "LlamaForCausalLM";
  } else {
    fields.fail("architectures", "an array with one name");
  }
  if (config.architecture != "LlamaForCausalLM") {
    throw Unsupported(fmt::format("'{}': this engine", path),
                      fmt::format("architecture \"{}\" (it has: LlamaForCausalLM)", config.architecture));
  }
  const std::string activation = fields.text("hidden_act").value_or("silu");
  if (activation != "silu") {
    throw Unsupported(fmt::format("'{}': this engine", path), fmt::format("hidden_act \"{}\"", activation));
  }
  if (fields.find("quantization_config") != nullptr) {
    throw Unsupported(fmt::format("'{}': this engine", path), "quantized checkpoints (quantization_config)");
  }
}

void read_heads(const JsonFields& fields, ModelConfig& config) {
  config.num_q_heads = fields.required_count("num_attention_heads");
  config.num_kv_heads = fields.count("num_key_value_heads").value_or(config.num_q_heads);
  if (config.num_q_heads % config.num_kv_heads != 0) {
    fields.fail("num_key_value_heads",
                fmt::format("a divisor of num_attention_heads ({})", config.num_q_heads));
  }
  const auto head_dim = fields.count("head_dim");
  if (!head_dim && config.hidden_size % config.num_q_heads != 0) {
    fields.fail("num_attention_heads",
                fmt::format("a divisor of hidden_size ({}) where head_dim is absent", config.hidden_size));
  }
  config.head_dim = head_dim.value_or(config.hidden_size / config.num_q_heads);
  if (config.head_dim % 2 != 0 || config.head_dim > 512) fields.fail("head_dim", "an even number up to 512");
}

RopeScaling read_rope_scaling(const nlohmann::json& object, const std::string& path, std::string_view name,
                              std::uint32_t max_position) {
  if (!object.is_object()) throw FormatError(path, 0, fmt::format("field \"{}\" is not an object", name));
  const JsonFields fields(object, path, fmt::format("{}.", name));
  const auto old_name = fields.text("type");
  const std::string kind = fields.text("rope_type").value_or(old_name.value_or("default"));
  RopeScaling scaling;
  if (kind == "default") return scaling;
  if (kind != "linear" && kind != "llama3") {
    throw Unsupported(fmt::format("'{}': this engine", path),
                      fmt::format("rope type \"{}\" (it has: default, linear, llama3)", kind));
  }
  if (fields.find("factor") == nullptr) fields.fail("factor", "a number of at least 1");
  scaling.factor = fields.positive("factor", 1);
  if (scaling.factor < 1) fields.fail("factor", "a number of at least 1");
  if (kind == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
    return scaling;
  }
  scaling.kind = RopeScalingKind::kLlama3;
  scaling.low_freq_factor = fields.positive("low_freq_factor", 1);
  scaling.high_freq_factor = fields.positive("high_freq_factor", 4);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    fields.fail("high_freq_factor", "a number above low_freq_factor");
  }
  scaling.original_max_position = fields.count("original_max_position_embeddings").value_or(max_position);
  return scaling;
}

void read_rope(const JsonFields& fields, const std::string& path, ModelConfig& config) {
  config.rope_theta = fields.positive("rope_theta", 10'000);
  // Newer files keep theta and scaling together under rope_parameters.
  for (const std::string_view name : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* object = fields.find(name);
    if (object == nullptr) continue;
    config.rope_scaling = read_rope_scaling(*object, path, name, config.max_position_embeddings);
    config.rope_theta =
        JsonFields(*object, path, fmt::format("{}.", name)).positive("rope_theta", config.rope_theta);
  }
  if (fields.number("partial_rotary_factor").value_or(1) != 1) {
    throw Unsupported(fmt::format("'{}': this engine", path), "partial_rotary_factor other than 1");
  }
  // Below 1 the pairs would turn ever faster, up to infinity.
  if (config.rope_theta < 1) fields.fail("rope_theta", "a number of at least 1");
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

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& path) {
  const nlohmann::json json = parse_json_object(text, path);
  const JsonFields fields(json, path);
  ModelConfig config;
  read_architecture(fields, path, config);
  config.hidden_size = fields.required_count("hidden_size");
  config.intermediate_size = fields.required_count("intermediate_size");
  config.num_layers = fields.required_count("num_hidden_layers");
  if (config.num_layers > 65'535) fields.fail("num_hidden_layers", "at most 65535");
  config.vocab_size = fields.required_count("vocab_size");
  if (config.vocab_size > sampling::kMaxVocabSize) {
    fields.fail("vocab_size", fmt::format("at most {}", sampling::kMaxVocabSize));
  }
  config.max_position_embeddings = fields.count("max_position_embeddings").value_or(2048);
  config.rms_norm_eps = static_cast<float>(fields.positive("rms_norm_eps", 1e-6));
  if (config.rms_norm_eps <= 0) fields.fail("rms_norm_eps", "a number above 0 in FP32");
  read_heads(fields, config);
  read_rope(fields, path, config);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(false);
  config.attention_bias = fields.boolean("attention_bias").value_or(false);
  config.mlp_bias = fields.boolean("mlp_bias").value_or(false);
  config.dtype = read_dtype(fields);
  read_special_tokens(fields, config);
  return config;
}

ModelConfig load_model_config(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / "config.json").string();
  ModelConfig config = parse_model_config(read_text_file(path, kMaxConfigBytes), path);
  const std::string generation = (std::filesystem::path(directory) / "generation_config.json").string();
  if (std::filesystem::exists(generation)) {
    const nlohmann::json json = parse_json_object(read_text_file(generation, kMaxConfigBytes), generation);
    read_special_tokens(JsonFields(json, generation), config);
  }
  return config;
}

std::vector<float> rope_inverse_frequencies(const ModelConfig& config) {
  std::vector<float> frequencies(config.head_dim / 2);
  const RopeScaling& scaling = config.rope_scaling;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / config.head_dim;
    double frequency = 1.0 / std::pow(config.rope_theta, exponent);
    if (scaling.kind == RopeScalingKind::kLinear) {
      frequency /= scaling.factor;
    } else if (scaling.kind == RopeScalingKind::kLlama3) {
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double original = scaling.original_max_position;
      if (wavelength > original / scaling.low_freq_factor) {
        frequency /= scaling.factor;
      } else if (wavelength >= original / scaling.high_freq_factor) {
        const double smooth = (original / wavelength - scaling.low_freq_factor) /
                              (scaling.high_freq_factor - scaling.low_freq_factor);
        frequency = (1 - smooth) * frequency / scaling.factor + smooth * frequency;
      }
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace metrale::engine
