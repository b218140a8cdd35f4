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

#include "support/golden.h"
#include "support/logit_rows.h"

namespace metrale::test {

namespace {

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t value = 0xCBF29CE484222325U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return value;
}

void append_bits(std::vector<std::byte>& out, std::uint32_t bits, unsigned bytes) {
  for (unsigned i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(bits >> (8 * i)));
}

void append_value(std::vector<std::byte>& out, float value, std::string_view dtype) {
  if (dtype == "F32") return append_bits(out, std::bit_cast<std::uint32_t>(value), 4);
  append_bits(out, dtype == "BF16" ? quant::float_to_bf16(value) : quant::float_to_f16(value), 2);
}

std::string dtype_of(const TinyModel& model) {
  const std::string name = model.config.at("torch_dtype");
  if (name == "float32") return "F32";
  return name == "float16" ? "F16" : "BF16";
}

bool is_gemma(const TinyModel& model) {
  return model.config.at("model_type") == "gemma3_text";
}

std::uint64_t number(const TinyModel& model, const char* field) {
  return model.config.at(field).get<std::uint64_t>();
}

bool flag(const TinyModel& model, const char* field, bool otherwise) {
  return model.config.value(field, otherwise);
}

std::uint64_t count_of(const std::vector<std::uint64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t size : shape) count *= size;
  return count;
}

std::uint64_t key_of(const TinyModel& model, std::string_view name) {
  return mix64(model.seed ^ fnv1a(name));
}

// w[i] = offset + ((mix64(key + i) >> 40) / 2^24 - 0.5) * scale; exact in float but for the last addition.
TinyTensor make_tensor(const TinyModel& model, std::string name, std::vector<std::uint64_t> shape) {
  const float offset = name.ends_with("norm.weight") && !is_gemma(model) ? 1.0F : 0.0F;
  const float scale = name == "model.embed_tokens.weight" ? 2.0F : 0.5F;
  const std::uint64_t key = key_of(model, name);
  TinyTensor tensor{std::move(name), dtype_of(model), std::move(shape), {}};
  for (std::uint64_t i = 0; i < count_of(tensor.shape); ++i) {
    const float unit = static_cast<float>(mix64(key + i) >> 40) * 0x1p-24F - 0.5F;
    append_value(tensor.bytes, offset + unit * scale, tensor.dtype);
  }
  return tensor;
}

// A matrix of E4M3 codes without NaN, and its scales.
void add_fp8_matrix(const TinyModel& model, const std::string& name, std::vector<std::uint64_t> shape,
                    std::vector<TinyTensor>& out) {
  const nlohmann::json& quantization = model.config.at("quantization_config");
  const bool tiled = quantization.contains("weight_block_size");
  TinyTensor scales{name + (tiled ? "_scale_inv" : "_scale"), "F32", {1}, {}};
  if (tiled) {
    const auto tile = quantization.at("weight_block_size").get<std::vector<std::uint64_t>>();
    scales.shape = {(shape[0] + tile[0] - 1) / tile[0], (shape[1] + tile[1] - 1) / tile[1]};
  }
  const std::uint64_t scale_key = key_of(model, scales.name);
  for (std::uint64_t i = 0; i < count_of(scales.shape); ++i) {
    append_value(scales.bytes, static_cast<float>(1 + (mix64(scale_key + i) >> 62)) / 1024, "F32");
  }
  TinyTensor matrix{name, "F8_E4M3", std::move(shape), {}};
  const std::uint64_t key = key_of(model, name);
  for (std::uint64_t i = 0; i < count_of(matrix.shape); ++i) {
    const auto bits = static_cast<std::uint32_t>(mix64(key + i) >> 56);
    append_bits(matrix.bytes, (bits & 0x7FU) == 0x7FU ? bits ^ 1U : bits, 1);
  }
  out.push_back(std::move(matrix));
  out.push_back(std::move(scales));
}

struct Linear {
  const char* name;
  std::uint64_t rows;
  std::uint64_t columns;
  bool bias;
};

std::vector<Linear> layer_linears(const TinyModel& model) {
  const std::uint64_t hidden = number(model, "hidden_size");
  const std::uint64_t ffn = number(model, "intermediate_size");
  const std::uint64_t heads = number(model, "num_attention_heads");
  const std::uint64_t head_dim = model.config.value("head_dim", hidden / heads);
  const std::uint64_t q_rows = heads * head_dim;
  const std::uint64_t kv_rows = number(model, "num_key_value_heads") * head_dim;
  const bool attention_bias = flag(model, "attention_bias", false);
  const bool qkv_bias = attention_bias || model.config.at("model_type") == "qwen2";
  const bool mlp_bias = flag(model, "mlp_bias", false);
  return {
      {"self_attn.q_proj", q_rows, hidden, qkv_bias},  {"self_attn.k_proj", kv_rows, hidden, qkv_bias},
      {"self_attn.v_proj", kv_rows, hidden, qkv_bias}, {"self_attn.o_proj", hidden, q_rows, attention_bias},
      {"mlp.gate_proj", ffn, hidden, mlp_bias},        {"mlp.up_proj", ffn, hidden, mlp_bias},
      {"mlp.down_proj", hidden, ffn, mlp_bias}};
}

void add_layer_norms(const TinyModel& model, const std::string& prefix, std::uint64_t head_dim,
                     std::vector<TinyTensor>& out) {
  const std::uint64_t hidden = number(model, "hidden_size");
  std::vector<const char*> norms{"input_layernorm", "post_attention_layernorm"};
  if (is_gemma(model)) norms.insert(norms.end(), {"pre_feedforward_layernorm", "post_feedforward_layernorm"});
  for (const char* norm : norms) out.push_back(make_tensor(model, prefix + norm + ".weight", {hidden}));
  if (!is_gemma(model) && model.config.at("model_type") != "qwen3") return;
  for (const char* norm : {"self_attn.q_norm", "self_attn.k_norm"}) {
    out.push_back(make_tensor(model, prefix + norm + ".weight", {head_dim}));
  }
}

void add_layer(const TinyModel& model, std::uint64_t layer, std::vector<TinyTensor>& out) {
  const std::vector<Linear> linears = layer_linears(model);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  add_layer_norms(model, prefix, linears.front().rows / number(model, "num_attention_heads"), out);
  for (const Linear& linear : linears) {
    const std::string name = prefix + linear.name;
    if (model.config.contains("quantization_config")) {
      add_fp8_matrix(model, name + ".weight", {linear.rows, linear.columns}, out);
    } else {
      out.push_back(make_tensor(model, name + ".weight", {linear.rows, linear.columns}));
    }
    if (linear.bias) out.push_back(make_tensor(model, name + ".bias", {linear.rows}));
  }
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
  return {"tiny_base",    "tiny_llama3", "tiny_linear", "tiny_mqa",    "tiny_yarn",       "tiny_dynamic",
          "tiny_mistral", "tiny_qwen2",  "tiny_qwen3",  "tiny_gemma3", "tiny_fp8_tensor", "tiny_fp8_tiles"};
}

TinyModel tiny_model(std::string_view name) {
  const std::vector<std::string> names = tiny_model_names();
  expects(std::ranges::find(names, name) != names.end(),
          "no tiny model of this name; tiny_model_names() has the list");
  const GoldenFile golden(fmt::format("engine/{}", name));
  return {
      .name = std::string(name), .seed = golden.facts().at("seed"), .config = golden.facts().at("config")};
}

std::vector<TinyTensor> tiny_tensors(const TinyModel& model) {
  const std::uint64_t hidden = number(model, "hidden_size");
  const std::uint64_t vocab = number(model, "vocab_size");
  std::vector<TinyTensor> tensors;
  tensors.push_back(make_tensor(model, "model.embed_tokens.weight", {vocab, hidden}));
  tensors.push_back(make_tensor(model, "model.norm.weight", {hidden}));
  if (!flag(model, "tie_word_embeddings", is_gemma(model))) {
    tensors.push_back(make_tensor(model, "lm_head.weight", {vocab, hidden}));
  }
  for (std::uint64_t layer = 0; layer < number(model, "num_hidden_layers"); ++layer)
    add_layer(model, layer, tensors);
  std::ranges::sort(tensors, {}, &TinyTensor::name);
  return tensors;
}

std::string tiny_config_json(const TinyModel& model) {
  return model.config.dump();
}

void write_safetensors(const std::string& path, const std::vector<TinyTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::vector<std::byte> data;
  for (const TinyTensor& tensor : tensors) {
    const std::size_t begin = data.size();
    data.insert(data.end(), tensor.bytes.begin(), tensor.bytes.end());
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
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
  write_safetensors(directory + "/model.safetensors", tiny_tensors(model));
}

}  // namespace metrale::test
