// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_model.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/quant/float_convert.h>

#include "support/logit_rows.h"

namespace metrale::test {

namespace {

using quant::ElementType;

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t value = 0xCBF29CE484222325U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return value;
}

void append_value(std::vector<std::byte>& out, float value, ElementType dtype) {
  std::uint32_t bits = 0;
  if (dtype == ElementType::kF32) bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == ElementType::kBf16) bits = quant::float_to_bf16(value);
  if (dtype == ElementType::kF16) bits = quant::float_to_f16(value);
  for (std::uint32_t i = 0; i < quant::element_bytes(dtype); ++i) {
    out.push_back(static_cast<std::byte>(bits >> (8 * i)));
  }
}

// w[i] = offset + ((mix64(key + i) >> 40) / 2^24 - 0.5) * scale; exact in float but for the last addition.
TinyTensor make_tensor(const TinyModel& model, std::string name, std::vector<std::uint64_t> shape) {
  const bool is_norm = name.ends_with("norm.weight");
  const float offset = is_norm ? 1.0F : 0.0F;
  const float scale = name == "model.embed_tokens.weight" ? 2.0F : 0.5F;
  std::uint64_t count = 1;
  for (const std::uint64_t size : shape) count *= size;
  const std::uint64_t key = mix64(model.seed ^ fnv1a(name));
  TinyTensor tensor{std::move(name), std::move(shape), {}};
  tensor.bytes.reserve(count * quant::element_bytes(model.dtype));
  for (std::uint64_t i = 0; i < count; ++i) {
    const float unit = static_cast<float>(mix64(key + i) >> 40) * 0x1p-24F - 0.5F;
    append_value(tensor.bytes, offset + unit * scale, model.dtype);
  }
  return tensor;
}

struct Linear {
  const char* name;
  std::uint64_t rows;
  std::uint64_t columns;
  bool bias;
};

void add_layer(const TinyModel& model, std::uint32_t layer, std::vector<TinyTensor>& out) {
  const std::uint64_t hidden = model.hidden_size;
  const std::uint64_t ffn = model.intermediate_size;
  const std::uint64_t q_rows = std::uint64_t{model.num_heads} * model.head_dim;
  const std::uint64_t kv_rows = std::uint64_t{model.num_kv_heads} * model.head_dim;
  const Linear linears[] = {
      {"self_attn.q_proj", q_rows, hidden, model.attention_bias},
      {"self_attn.k_proj", kv_rows, hidden, model.attention_bias},
      {"self_attn.v_proj", kv_rows, hidden, model.attention_bias},
      {"self_attn.o_proj", hidden, q_rows, model.attention_bias},
      {"mlp.gate_proj", ffn, hidden, model.mlp_bias},
      {"mlp.up_proj", ffn, hidden, model.mlp_bias},
      {"mlp.down_proj", hidden, ffn, model.mlp_bias},
  };
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    out.push_back(make_tensor(model, fmt::format("{}{}.weight", prefix, norm), {hidden}));
  }
  for (const Linear& linear : linears) {
    const std::string name = prefix + linear.name;
    out.push_back(make_tensor(model, name + ".weight", {linear.rows, linear.columns}));
    if (linear.bias) out.push_back(make_tensor(model, name + ".bias", {linear.rows}));
  }
}

std::string_view torch_name(ElementType dtype) {
  if (dtype == ElementType::kF32) return "float32";
  return dtype == ElementType::kF16 ? "float16" : "bfloat16";
}

std::string_view safetensors_name(ElementType dtype) {
  if (dtype == ElementType::kF32) return "F32";
  return dtype == ElementType::kF16 ? "F16" : "BF16";
}

void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  for (const auto part : parts) {
    out.write(reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
  }
  out.close();
  if (!out.good()) throw IoError("write", path, errno);
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

std::vector<std::string> tiny_model_names() {
  return {"tiny_base", "tiny_llama3", "tiny_linear", "tiny_mqa"};
}

TinyModel tiny_model(std::string_view name) {
  TinyModel model;
  model.name = name;
  if (name == "tiny_base") return model;
  model.vocab_size = 320;
  if (name == "tiny_llama3") {
    model.seed = 2;
    model.head_dim = 24;
    model.tie_word_embeddings = false;
    model.attention_bias = true;
    model.rope_theta = 500000.0;
    model.rope_scaling = {{"factor", 8.0},
                          {"high_freq_factor", 4.0},
                          {"low_freq_factor", 1.0},
                          {"original_max_position_embeddings", 64},
                          {"rope_type", "llama3"}};
    return model;
  }
  if (name == "tiny_linear") {
    model.seed = 7;
    model.dtype = ElementType::kF16;
    model.intermediate_size = 96;
    model.writes_head_dim = false;
    model.tie_word_embeddings = false;
    model.rope_scaling = {{"factor", 4.0}, {"type", "linear"}};
    return model;
  }
  expects(name == "tiny_mqa", "no tiny model of this name; tiny_model_names() has the list");
  model.seed = 4;
  model.dtype = ElementType::kF32;
  model.num_kv_heads = 1;
  model.mlp_bias = true;
  model.rms_norm_eps = 1e-6;
  return model;
}

std::vector<TinyTensor> tiny_tensors(const TinyModel& model) {
  const std::uint64_t hidden = model.hidden_size;
  const std::uint64_t vocab = model.vocab_size;
  std::vector<TinyTensor> tensors;
  tensors.push_back(make_tensor(model, "model.embed_tokens.weight", {vocab, hidden}));
  tensors.push_back(make_tensor(model, "model.norm.weight", {hidden}));
  if (!model.tie_word_embeddings) tensors.push_back(make_tensor(model, "lm_head.weight", {vocab, hidden}));
  for (std::uint32_t layer = 0; layer < model.num_layers; ++layer) add_layer(model, layer, tensors);
  std::ranges::sort(tensors, {}, &TinyTensor::name);
  return tensors;
}

std::string tiny_config_json(const TinyModel& model) {
  nlohmann::json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"attention_bias", model.attention_bias},
      {"bos_token_id", 257},
      {"eos_token_id", 258},
      {"hidden_act", "silu"},
      {"hidden_size", model.hidden_size},
      {"intermediate_size", model.intermediate_size},
      {"max_position_embeddings", model.max_position_embeddings},
      {"mlp_bias", model.mlp_bias},
      {"model_type", "llama"},
      {"num_attention_heads", model.num_heads},
      {"num_hidden_layers", model.num_layers},
      {"num_key_value_heads", model.num_kv_heads},
      {"pad_token_id", 259},
      {"rms_norm_eps", model.rms_norm_eps},
      {"rope_scaling", model.rope_scaling},
      {"rope_theta", model.rope_theta},
      {"tie_word_embeddings", model.tie_word_embeddings},
      {"torch_dtype", torch_name(model.dtype)},
      {"vocab_size", model.vocab_size},
  };
  if (model.writes_head_dim) config["head_dim"] = model.head_dim;
  return config.dump();
}

void write_safetensors(const std::string& path, ElementType dtype, const std::vector<TinyTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::vector<std::byte> data;
  for (const TinyTensor& tensor : tensors) {
    const std::size_t begin = data.size();
    data.insert(data.end(), tensor.bytes.begin(), tensor.bytes.end());
    header[tensor.name] = {
        {"dtype", safetensors_name(dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (unsigned i = 0; i < 8; ++i) length.push_back(static_cast<char>(std::uint64_t{text.size()} >> (8 * i)));
  write_file(path, {bytes_of(length), bytes_of(text), data});
}

void write_tiny_model(const TinyModel& model, const std::string& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (failure) throw IoError("mkdir", directory, failure.value());
  write_file(directory + "/config.json", {bytes_of(tiny_config_json(model))});
  write_file(directory + "/tokenizer.json", {bytes_of(tiny_tokenizer_json(model))});
  write_safetensors(directory + "/model.safetensors", model.dtype, tiny_tensors(model));
}

}  // namespace metrale::test
