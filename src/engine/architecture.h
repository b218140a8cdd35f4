// SPDX-License-Identifier: Apache-2.0
// The architectures of the engine: their names, the values that config.json may leave out, and what each sets
// beside the fields that all share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <metrale/engine/model_config.h>

#include "engine/json_fields.h"

namespace metrale::engine {

struct Architecture {
  std::string_view name;        // in "architectures"
  std::string_view model_type;  // in "model_type"
  // What an absent field means, as in transformers. 0: the field is required, or derived.
  std::uint32_t num_q_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t vocab_size = 0;
  std::uint32_t max_positions = 2048;
  double rope_theta = 10'000;
  bool tie_word_embeddings = false;
  std::string_view activation = "silu";
  // Reads the fields of this architecture; those of all others are in `config` already.
  void (*read)(const JsonFields& fields, ModelConfig& config) = nullptr;
};

// By "architectures", else by "model_type". Throws FormatError where neither says anything, Unsupported for
// one that is not in the table.
[[nodiscard]] const Architecture& find_architecture(const JsonFields& fields, const std::string& path);

}  // namespace metrale::engine
