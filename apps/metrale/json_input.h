// SPDX-License-Identifier: Apache-2.0
// What the readers of JSON lines share: how deep a line may be, and how a message shows what was refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <metrale/base/json_scan.h>

namespace metrale::app {

// Whether there are more than `limit` commas, each with a value behind it that the parser would keep.
[[nodiscard]] inline bool has_more_commas(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return false;
  std::size_t count = 0;
  return any_json_sign(text, [&](char c) { return c == ',' && ++count > limit; });
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
