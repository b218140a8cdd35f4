// SPDX-License-Identifier: Apache-2.0
// What can be said of a JSON text before it is parsed, without taking memory: parsers are recursive, or pay
// for every level and value.
#pragma once

#include <cstddef>
#include <string_view>

namespace metrale {

// Arrays and objects within one another. No format of ours has more than ten.
inline constexpr int kMaxJsonDepth = 64;

// Calls `visit(c)` for the characters outside strings, as far as the text is JSON, until one returns true;
// then returns true.
template <class Visit>
[[nodiscard]] bool any_json_sign(std::string_view text, const Visit& visit) {
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (c == '\\') ++i;  // only strings have it
    if (!in_string && visit(c)) return true;
  }
  return false;
}

// Whether arrays and objects are nested more than kMaxJsonDepth deep.
[[nodiscard]] inline bool is_too_deep_json(std::string_view text) {
  int depth = 0;
  return any_json_sign(text, [&](char c) {
    if (c == ']' || c == '}') --depth;
    return (c == '[' || c == '{') && ++depth > kMaxJsonDepth;
  });
}

}  // namespace metrale
