// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/unicode.h"

#include <utf8proc.h>

#include "engine/tokenizer/utf8.h"

namespace metrale::engine {

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

std::size_t white_space_before(std::string_view text, std::size_t end, std::size_t limit) {
  while (end > limit) {
    const Utf8Unit unit = last_utf8_unit(text.substr(limit, end - limit));
    if (unit.kind != Utf8Kind::kCharacter || !is_white_space(unit.code_point)) break;
    end -= unit.length_bytes;
  }
  return end;
}

std::size_t white_space_after(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const Utf8Unit unit = first_utf8_unit(text.substr(begin));
    if (unit.kind != Utf8Kind::kCharacter || !is_white_space(unit.code_point)) break;
    begin += unit.length_bytes;
  }
  return begin;
}

}  // namespace metrale::engine
