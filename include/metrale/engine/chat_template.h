// SPDX-License-Identifier: Apache-2.0
// The ChatML prompt: <|im_start|>role\ncontent<|im_end|>\n for every message.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/engine/tokenizer.h>

namespace metrale::engine {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// Whether the vocabulary has the tokens <|im_start|> and <|im_end|>.
[[nodiscard]] bool uses_chatml(const Tokenizer& tokenizer);

// The prompt as text, to show or to encode with add_special_tokens off and parse_special on. Contents go in
// unchanged, so one that spells <|im_end|> ends its message: use encode_chatml for contents that are not
// trusted. `add_generation_prompt` ends the prompt with <|im_start|>assistant\n, so that the model answers.
// `default_system`, where not empty, is the system message of a conversation that does not begin with one.
// Some models' templates have one (SmolLM2: "You are a helpful AI assistant named SmolLM, trained by Hugging
// Face"); no file is read for it, the caller knows its model.
[[nodiscard]] std::string render_chatml(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                        std::string_view default_system = {});

// The prompt as ids: those of render_chatml's text, except that special tokens spelled in a role or a content
// are read as plain text. Throws InvalidArgument where the tokenizer does not use ChatML.
[[nodiscard]] std::vector<TokenId> encode_chatml(const Tokenizer& tokenizer,
                                                 std::span<const ChatMessage> messages,
                                                 bool add_generation_prompt,
                                                 std::string_view default_system = {});

}  // namespace metrale::engine
