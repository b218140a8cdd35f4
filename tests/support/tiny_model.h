// SPDX-License-Identifier: Apache-2.0
// Tiny models made from a seed, for tests without a real model. Names, seeds and configurations stand in
// tests/golden/engine/tiny_*.json; scripts/golden/tiny_model.py makes the same bytes in Python, so the golden
// logits of those files belong to these models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace metrale::test {

struct TinyModel {
  std::string name;
  std::uint64_t seed = 0;
  nlohmann::json config;  // config.json, which a test may change as it likes
};

// One of tiny_model_names(): tests/golden/engine/README.md says what each is for. Throws InvalidArgument for
// another name.
[[nodiscard]] TinyModel tiny_model(std::string_view name);
[[nodiscard]] std::vector<std::string> tiny_model_names();

struct TinyTensor {
  std::string name;
  std::string dtype;  // as safetensors spells it
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;  // little endian
};

// Sorted by name.
[[nodiscard]] std::vector<TinyTensor> tiny_tensors(const TinyModel& model);

// The texts of the two files: sorted keys, no spaces. A vocabulary has 260 (256 bytes and 4 specials) to 2158
// tokens; merges fill what is above 260. Special tokens: 256 <|endoftext|>, 257 <|im_start|>
// (BOS), 258 <|im_end|> (EOS), 259 <|pad|>; id b < 256 is byte b.
[[nodiscard]] std::string tiny_config_json(const TinyModel& model);
[[nodiscard]] std::string tiny_tokenizer_json(const TinyModel& model);

// Writes config.json, tokenizer.json and model.safetensors into `directory`, which is made where absent.
// Throws IoError.
void write_tiny_model(const TinyModel& model, const std::string& directory);

// One safetensors file of the tensors in the given order. Throws IoError.
void write_safetensors(const std::string& path, const std::vector<TinyTensor>& tensors);

}  // namespace metrale::test
