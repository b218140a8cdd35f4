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

// Whether the text opens more than kMaxJsonDepth arrays and objects within one another, as far as it is JSON.
// Takes no memory: it is asked before the text is parsed.
[[nodiscard]] inline bool is_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (c == '\\') ++i;  // only strings have it
    if (in_string) continue;
    if ((c == '[' || c == '{') && ++depth > kMaxJsonDepth) return true;
    if (c == ']' || c == '}') --depth;
  }
  return false;
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
