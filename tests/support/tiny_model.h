// SPDX-License-Identifier: Apache-2.0
// Tiny Llama models made from a seed, for tests without a real model. scripts/golden/tiny_model.py makes the
// same bytes in Python, so the golden logits of tests/golden/engine/tiny_*.json belong to these models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <metrale/quant/element_type.h>

namespace metrale::test {

// What tiny_base is; the other variants change some of it, and a test may change it as it likes.
struct TinyModel {
  std::string name = "tiny_base";
  std::uint64_t seed = 1;
  quant::ElementType dtype = quant::ElementType::kBf16;
  std::uint32_t vocab_size = 512;  // 260 (256 bytes and 4 specials) to 2158; merges fill what is above 260
  std::uint32_t hidden_size = 64;
  std::uint32_t intermediate_size = 128;
  std::uint32_t num_layers = 3;
  std::uint32_t num_heads = 4;
  std::uint32_t num_kv_heads = 2;
  std::uint32_t head_dim = 16;
  bool writes_head_dim = true;  // false: config.json has none, and hidden_size / num_heads must be meant
  std::uint32_t max_position_embeddings = 512;
  bool tie_word_embeddings = true;
  bool attention_bias = false;
  bool mlp_bias = false;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  nlohmann::json rope_scaling = nullptr;
};

// "tiny_base": BF16, tied. "tiny_llama3": BF16, head_dim 24, biased attention, llama3 rotary scaling.
// "tiny_linear": FP16, linear scaling in the old spelling, no head_dim. "tiny_mqa": FP32, one KV head, biased
// MLP. Throws InvalidArgument for another name.
[[nodiscard]] TinyModel tiny_model(std::string_view name);
[[nodiscard]] std::vector<std::string> tiny_model_names();

struct TinyTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;  // little endian, in the model's dtype
};

// Sorted by name.
[[nodiscard]] std::vector<TinyTensor> tiny_tensors(const TinyModel& model);

// The texts of the two files: sorted keys, no spaces. Special tokens: 256 <|endoftext|>, 257 <|im_start|>
// (BOS), 258 <|im_end|> (EOS), 259 <|pad|>; id b < 256 is byte b.
[[nodiscard]] std::string tiny_config_json(const TinyModel& model);
[[nodiscard]] std::string tiny_tokenizer_json(const TinyModel& model);

// Writes config.json, tokenizer.json and model.safetensors into `directory`, which is made where absent.
// Throws IoError.
void write_tiny_model(const TinyModel& model, const std::string& directory);

// One safetensors file of tensors of one type, in the given order. Throws IoError.
void write_safetensors(const std::string& path, quant::ElementType dtype,
                       const std::vector<TinyTensor>& tensors);

}  // namespace metrale::test
