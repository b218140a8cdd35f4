// SPDX-License-Identifier: Apache-2.0
// ModelConfig: what config.json (and generation_config.json) say about a decoder-only model, checked. The
// fields say what to compute, so that the decoder asks for no architecture by name: Llama, Mistral, Qwen2,
// Qwen3 and Gemma 3 differ in these fields alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <metrale/engine/rope.h>
#include <metrale/quant/element_type.h>

namespace metrale::engine {

enum class Activation : std::uint8_t { kSilu, kGeluTanh };

// How a checkpoint's FP8 matrices are scaled: one factor for each tile of so many rows and columns. A
// checkpoint with one factor a tensor or a row needs no tile; the tensors' shapes tell which it is.
struct Fp8Tile {
  std::uint32_t rows = 128;
  std::uint32_t columns = 128;
};

// Sampling parameters that generation_config.json recommends.
struct GenerationDefaults {
  std::optional<float> temperature;
  std::optional<std::int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
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
  Activation activation = Activation::kSilu;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;        // each query and key head is normalised before it is turned
  bool post_norms = false;     // what attention and MLP give is normalised before it is added
  float norm_offset = 0;       // added to every norm's weights
  double embedding_scale = 1;  // the embedding's rows are multiplied by it
  double attention_scale = 0;  // the scores' factor
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;      // of the layers with a window, where theirs differs
  std::vector<std::uint32_t> layer_windows;  // [num_layers]: keys that a query sees, itself included; 0: all
  Fp8Tile fp8_tile;                          // of FP8 checkpoints
  std::optional<quant::ElementType> dtype;   // as declared; the tensors have the last word
  std::optional<std::int32_t> bos_id;
  std::vector<std::int32_t> eos_ids;  // any of them ends a text; generation_config.json wins over config.json
  GenerationDefaults generation;

  // The longest sequence that the positions serve.
  [[nodiscard]] std::uint32_t max_positions() const;
  // `asked`, or max_position_embeddings for 0. Throws InvalidArgument beyond max_positions().
  [[nodiscard]] std::uint32_t resolve_max_seq_len(std::uint32_t asked) const;
};

// `text` is a config.json; `path` is named in errors. Throws FormatError (which field, what was expected),
// Unsupported (an architecture, activation, rope type or quantization that this engine does not have).
[[nodiscard]] ModelConfig parse_model_config(const std::string& text, const std::string& path);

// Reads config.json and, where present, generation_config.json of a model directory. Throws also IoError.
[[nodiscard]] ModelConfig load_model_config(const std::string& directory);

}  // namespace metrale::engine
