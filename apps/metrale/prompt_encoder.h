// SPDX-License-Identifier: Apache-2.0
// PromptEncoder: texts and conversations as the token ids that a model is given.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/engine/chat_template.h>
#include <metrale/engine/tokenizer.h>

namespace metrale::app {

// The tokenizer of a model directory; none where the directory has none and `needed` is false. Throws as
// Tokenizer::load does.
[[nodiscard]] std::optional<engine::Tokenizer> load_tokenizer(const std::string& model, bool needed);

class PromptEncoder {
 public:
  // `tokenizer` may be null and outlives this. A `chat_template` that is named is loaded at once, the model's
  // own with the first conversation. Throws what ChatTemplate::load throws.
  PromptEncoder(std::string model, const engine::Tokenizer* tokenizer, std::string chat_template);

  // Each throws InvalidArgument where there is no tokenizer, or where no token comes out (`subject`, such as
  // "prompt 3", begins the message), and what the tokenizer and the template throw.
  [[nodiscard]] std::vector<std::int32_t> text(const std::string& prompt, std::string_view subject) const;
  [[nodiscard]] std::vector<std::int32_t> chat(std::span<const engine::ChatMessage> messages,
                                               std::string_view subject);

 private:
  std::string model_;
  const engine::Tokenizer* tokenizer_;
  std::string chosen_template_;
  std::optional<engine::ChatTemplate> template_;
};

}  // namespace metrale::app
