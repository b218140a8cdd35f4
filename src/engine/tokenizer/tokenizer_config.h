// SPDX-License-Identifier: Apache-2.0
// tokenizer_config.json, as far as it says what tokenizer.json does not.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace metrale::engine {

struct TokenizerConfig {
  std::string tokenizer_class;
  // "bos_token", "eos_token", "unk_token", "pad_token" with their spellings, where they are given.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<std::string> chat_template;  // the one named "default" where there are several

  [[nodiscard]] const std::string* special_token(std::string_view name) const;
  // What transformers' class puts around a text, whatever the post-processor of tokenizer.json is: the
  // classes of Llama, Code Llama, Gemma, GPT-NeoX and Cohere heed add_bos_token and add_eos_token, the others
  // do not (nullopt).
  struct Frame {
    std::optional<std::string> bos;
    std::optional<std::string> eos;
  };
  [[nodiscard]] std::optional<Frame> frame() const;
};

// Empty where the file does not exist. Throws IoError, FormatError.
[[nodiscard]] TokenizerConfig read_tokenizer_config(const std::string& path);

}  // namespace metrale::engine
