// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <weights/json_text.h>

#include <fmt/format.h>

namespace metrale::weights {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void append_ascii_json_string(std::string& out, std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  for (std::size_t i = 0; i < quoted.size();) {
    const auto lead = static_cast<unsigned char>(quoted[i++]);
    if (lead < 0x80) {
      out += static_cast<char>(lead);
      continue;
    }
    const unsigned following = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    std::uint32_t code = lead & (0x3FU >> following);
    for (unsigned k = 0; k < following && i < quoted.size(); ++k)
      code = code << 6 | (static_cast<unsigned char>(quoted[i++]) & 0x3FU);
    if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      code -= 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FFU));
    }
  }
}

}  // namespace metrale::weights
