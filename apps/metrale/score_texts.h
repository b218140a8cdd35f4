// SPDX-License-Identifier: Apache-2.0
// The token ids that `metrale score` scores, from texts.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <metrale/engine/model_config.h>
#include <metrale/engine/tokenizer.h>

namespace metrale::app {

// A prompt and what follows it; tokens[first_target] is the first of the continuation.
struct PromptAndContinuation {
  std::vector<std::int32_t> tokens;
  std::size_t first_target = 0;
};

// As the Language Model Evaluation Harness cuts them: white space at the end of the prompt belongs to the
// continuation, and the continuation is what the two together have beyond the prompt's own tokens. An empty
// prompt becomes the text's first special token, the model's BOS or its EOS. What the tokenizer puts around a
// text stands before the prompt where `add_special_tokens`, never behind the continuation. Throws
// InvalidArgument where no token is the continuation's own, or an empty prompt has nothing to stand for it.
[[nodiscard]] PromptAndContinuation encode_pair(const engine::Tokenizer& tokenizer,
                                                const engine::ModelConfig& config, std::string_view prompt,
                                                std::string_view continuation, bool add_special_tokens);

}  // namespace metrale::app
