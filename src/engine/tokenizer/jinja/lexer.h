// SPDX-License-Identifier: Apache-2.0
// A chat template as tokens: text, tags and what stands in them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace metrale::engine::jinja {

enum class TokenKind : std::uint8_t {
  kData,         // text between tags
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kTagBegin,     // {%
  kTagEnd,       // %}
  kName,
  kString,  // without quotes and escapes
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  std::uint32_t line = 1;
};

// White space around tags is taken off as trim_blocks, lstrip_blocks and the signs in the tags ask. Throws
// FailureAt.
[[nodiscard]] std::vector<Token> tokenize(std::string_view source);

}  // namespace metrale::engine::jinja
