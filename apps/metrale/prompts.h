// SPDX-License-Identifier: Apache-2.0
// Where prompts come from: flags, a file, standard input, a list of token ids, or a file of many prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace metrale::app {

// A text, or token ids that need no tokenizer.
struct Prompt {
  std::string text;
  std::optional<std::vector<std::int32_t>> tokens;
};

struct PromptSources {
  std::optional<std::string> text;    // -p
  std::string file;                   // -f; "-" is standard input
  std::optional<std::string> tokens;  // --tokens
  std::string batch;                  // --batch
};

// Exactly one source may be given; none means standard input. Throws InvalidArgument, IoError, FormatError.
[[nodiscard]] std::vector<Prompt> read_prompts(const PromptSources& sources);

// A whole text; "-" is standard input. Throws IoError, FormatError for more than 256 MiB, Cancelled where a
// signal comes first.
[[nodiscard]] std::string read_source(const std::string& path);

// "1,2,3" or with white space. Throws InvalidArgument naming `flag` and the entry.
[[nodiscard]] std::vector<std::int32_t> parse_token_list(const std::string& text,
                                                         std::string_view flag = "--tokens");

}  // namespace metrale::app
