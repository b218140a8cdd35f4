// SPDX-License-Identifier: Apache-2.0
// The parts of the tokenizer.json reader. Each throws FormatError and Unsupported.
#pragma once

#include "engine/tokenizer/json_node.h"
#include "engine/tokenizer/spec.h"

namespace metrale::engine {

// `model` and `added_tokens`: spellings, in_model, added_tokens and bpe of the spec.
void read_model(const JsonNode& root, TokenizerSpec& spec);

// `post_processor`: prefix and suffix. After read_model.
void read_post_processor(const JsonNode& root, TokenizerSpec& spec);

// `normalizer`, `pre_tokenizer`, `decoder`.
void read_text_steps(const JsonNode& root, TokenizerSpec& spec);

}  // namespace metrale::engine
