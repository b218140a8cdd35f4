// SPDX-License-Identifier: Apache-2.0
// Patterns over the names of tensors.
#pragma once

#include <string_view>

namespace metrale::app {

// Whether the whole of `text` is what `pattern` describes: * is any number of bytes, ? is one, others are
// themselves.
[[nodiscard]] constexpr bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;  // the last one, and where it ends in the text so far
  std::size_t star_end = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_end;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace metrale::app
