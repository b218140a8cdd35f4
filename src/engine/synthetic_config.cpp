// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/engine/synthetic_model.h>

#include "engine/tokenizer/byte_alphabet.h"

namespace metrale::engine {
namespace {

using nlohmann::ordered_json;

constexpr std::uint32_t kBytes = 256;
constexpr std::uint32_t kBosId = 256;
constexpr std::uint32_t kEosId = 257;
constexpr const char* kBosText = "<|begin_of_text|>";
constexpr const char* kEosText = "<|end_of_text|>";

struct Shape {
  std::string_view architecture;
  std::string_view like;
  std::uint32_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size;
  std::uint32_t max_position_embeddings;
  bool tied;
  double rope_theta;
  double llama3_factor = 0;  // 0: no rotary scaling
};

constexpr std::array kShapes{
    Shape{"llama", "tiny", 64, 160, 2, 4, 2, 16, 512, 2048, true, 10'000},
    Shape{"llama", "1b", 2048, 8192, 16, 32, 8, 64, 128'256, 131'072, true, 500'000, 32},
    Shape{"llama", "8b", 4096, 14'336, 32, 32, 8, 128, 128'256, 131'072, false, 500'000, 8},
    Shape{"qwen3", "tiny", 64, 160, 2, 4, 2, 32, 512, 2048, true, 1'000'000},
    Shape{"qwen3", "1b", 2048, 6144, 28, 16, 8, 128, 151'936, 40'960, true, 1'000'000},
    Shape{"qwen3", "8b", 4096, 12'288, 36, 32, 8, 128, 151'936, 40'960, false, 1'000'000},
    Shape{"mistral", "tiny", 64, 160, 2, 4, 2, 16, 512, 2048, false, 10'000},
    Shape{"mistral", "1b", 2048, 7168, 20, 32, 8, 64, 32'000, 32'768, false, 10'000},
    Shape{"mistral", "8b", 4096, 14'336, 32, 32, 8, 128, 32'000, 32'768, false, 10'000},
};

const Shape& find_shape(const SyntheticModel& model) {
  for (const Shape& shape : kShapes) {
    if (shape.architecture == model.architecture && shape.like == model.like) return shape;
  }
  throw InvalidArgument(fmt::format(
      "no synthetic model '{}' like '{}': there are llama, qwen3 and mistral like tiny, 1b and 8b",
      model.architecture, model.like));
}

std::string_view torch_name(quant::ElementType dtype) {
  switch (dtype) {
    case quant::ElementType::kF32:
      return "float32";
    case quant::ElementType::kBf16:
      return "bfloat16";
    case quant::ElementType::kF16:
      return "float16";
  }
  throw InvalidArgument("no such element type");
}

// What only this architecture's configuration has.
void add_particulars(const Shape& shape, ordered_json& config) {
  if (shape.architecture == "llama") {
    config["mlp_bias"] = false;
    config["rope_scaling"] = nullptr;
    if (shape.llama3_factor == 0) return;
    config["rope_scaling"] = {{"factor", shape.llama3_factor},
                              {"high_freq_factor", 4.0},
                              {"low_freq_factor", 1.0},
                              {"original_max_position_embeddings", 8192},
                              {"rope_type", "llama3"}};
  } else if (shape.architecture == "qwen3") {
    config["max_window_layers"] = shape.num_layers;
    config["rope_scaling"] = nullptr;
    config["sliding_window"] = nullptr;
    config["use_sliding_window"] = false;
  } else {
    config["sliding_window"] = shape.like == "tiny" ? 64 : 4096;
  }
}

ordered_json added_token(std::uint32_t id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

// UTF-8 of a character of the byte alphabet.
std::string spelling_of_byte(std::uint32_t byte) {
  const char16_t code = kByteCharacters[byte];
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

}  // namespace

std::string synthetic_config_json(const SyntheticModel& model) {
  const Shape& shape = find_shape(model);
  const bool is_llama = shape.architecture == "llama";
  const std::string_view name = is_llama                          ? "LlamaForCausalLM"
                                : shape.architecture == "mistral" ? "MistralForCausalLM"
                                                                  : "Qwen3ForCausalLM";
  ordered_json config{{"architectures", {name}},
                      {"attention_bias", false},
                      {"attention_dropout", 0.0},
                      {"bos_token_id", kBosId},
                      {"eos_token_id", kEosId},
                      {"head_dim", shape.head_dim},
                      {"hidden_act", "silu"},
                      {"hidden_size", shape.hidden_size},
                      {"initializer_range", 0.02},
                      {"intermediate_size", shape.intermediate_size},
                      {"max_position_embeddings", shape.max_position_embeddings},
                      {"model_type", shape.architecture},
                      {"num_attention_heads", shape.num_heads},
                      {"num_hidden_layers", shape.num_layers},
                      {"num_key_value_heads", shape.num_kv_heads},
                      {"rms_norm_eps", shape.architecture == "qwen3" ? 1e-6 : 1e-5},
                      {"rope_theta", shape.rope_theta},
                      {"tie_word_embeddings", shape.tied},
                      {"torch_dtype", torch_name(model.dtype)},
                      {"use_cache", true},
                      {"vocab_size", shape.vocab_size}};
  add_particulars(shape, config);
  return config.dump(2) + "\n";
}

std::string synthetic_tokenizer_config_json() {
  // Without the class transformers takes the architecture's own, which adds tokens of another vocabulary.
  const ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                               {"bos_token", kBosText},
                               {"eos_token", kEosText},
                               {"clean_up_tokenization_spaces", false}};
  return config.dump(2) + "\n";
}

std::string synthetic_tokenizer_json(std::uint32_t vocab_size, bool adds_bos) {
  if (vocab_size <= kEosId) {
    throw InvalidArgument(fmt::format("a synthetic tokenizer has at least {} tokens", kEosId + 1));
  }
  // A JSON object of this library looks for each key before it adds it, which is quadratic.
  std::string entries;
  const auto add = [&entries](const std::string& spelling, std::uint32_t id) {
    entries += fmt::format("{}{}:{}", entries.empty() ? "" : ",", ordered_json(spelling).dump(), id);
  };
  for (std::uint32_t byte = 0; byte < kBytes; ++byte) add(spelling_of_byte(byte), byte);
  add(kBosText, kBosId);
  add(kEosText, kEosId);
  for (std::uint32_t id = kEosId + 1; id < vocab_size; ++id) add(fmt::format("<|filler_{}|>", id), id);

  const ordered_json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  ordered_json post_processor = nullptr;
  if (adds_bos) {
    const ordered_json bos{{"SpecialToken", {{"id", kBosText}, {"type_id", 0}}}};
    const auto text = [](const char* id, int type) {
      return ordered_json{{"Sequence", {{"id", id}, {"type_id", type}}}};
    };
    post_processor = {
        {"type", "TemplateProcessing"},
        {"single", ordered_json::array({bos, text("A", 0)})},
        {"pair", ordered_json::array({bos, text("A", 0), text("B", 1)})},
        {"special_tokens", {{kBosText, {{"id", kBosText}, {"ids", {kBosId}}, {"tokens", {kBosText}}}}}}};
  }
  return fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":{},"normalizer":null,)"
      R"("pre_tokenizer":{},"post_processor":{},"decoder":{},"model":{{"type":"BPE","dropout":null,)"
      R"("unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,)"
      R"("byte_fallback":false,"ignore_merges":false,"vocab":{{{}}},"merges":[]}}}})"
      "\n",
      ordered_json::array({added_token(kBosId, kBosText), added_token(kEosId, kEosText)}).dump(),
      byte_level.dump(), post_processor.dump(), byte_level.dump(), entries);
}

}  // namespace metrale::engine
