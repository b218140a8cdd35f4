// SPDX-License-Identifier: Apache-2.0
// What the readers of JSON lines share: how deep a line may be, and how a message shows what was refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace metrale::app {

// Arrays and objects within one another. No format has more than five; each level costs the parser memory.
inline constexpr int kMaxJsonDepth = 64;

// Calls `visit(c)` for the characters outside strings, as far as the text is JSON, until one returns true;
// then returns true. Takes no memory: it is for before the text is parsed.
template <class Visit>
[[nodiscard]] bool any_sign(std::string_view text, const Visit& visit) {
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
[[nodiscard]] inline bool is_too_deep(std::string_view text) {
  int depth = 0;
  return any_sign(text, [&](char c) {
    if (c == ']' || c == '}') --depth;
    return (c == '[' || c == '{') && ++depth > kMaxJsonDepth;
  });
}

// Whether there are more than `limit` commas, each with a value behind it that the parser would keep.
[[nodiscard]] inline bool has_more_commas(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return false;
  std::size_t count = 0;
  return any_sign(text, [&](char c) { return c == ',' && ++count > limit; });
}

// Numbers, truth values and short texts as they are; of anything else its kind, since it may be large.
[[nodiscard]] inline std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMaxShown = 40;
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  if (value.is_string() && value.get_ref<const std::string&>().size() > kMaxShown) return "a long text";
  return value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// A name from the input, cut to a length that can be printed.
[[nodiscard]] inline std::string shown_name(std::string_view name) {
  constexpr std::size_t kMaxShown = 64;
  return name.size() <= kMaxShown ? std::string(name) : std::string(name.substr(0, kMaxShown)) + "...";
}

}  // namespace metrale::app
