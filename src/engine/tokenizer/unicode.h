// SPDX-License-Identifier: Apache-2.0
// Character classes that the tokenizer needs outside of patterns.
#pragma once

#include <cstddef>
#include <string_view>

namespace metrale::engine {

// Unicode's White_Space property, which has not changed since Unicode 6.3.
[[nodiscard]] constexpr bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// General category Nd, Nl or No.
[[nodiscard]] bool is_numeric(char32_t c);

// The first byte of the white space that ends at `end`, not before `limit`. Any bytes are accepted.
[[nodiscard]] std::size_t white_space_before(std::string_view text, std::size_t end, std::size_t limit);
// The byte after the white space that begins at `begin`. Any bytes are accepted.
[[nodiscard]] std::size_t white_space_after(std::string_view text, std::size_t begin);

}  // namespace metrale::engine
