// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/utf8.h"

#include <algorithm>

namespace metrale::engine {
namespace {

struct Lead {
  std::uint32_t length = 0;         // of the whole sequence, 0 for a byte that begins none
  unsigned char second_min = 0x80;  // the second byte's range, which excludes overlong forms and surrogates
  unsigned char second_max = 0xBF;
};

Lead classify(unsigned char byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xC2 || byte > 0xF4) return {};
  if (byte < 0xE0) return {.length = 2};
  if (byte == 0xE0) return {.length = 3, .second_min = 0xA0};
  if (byte == 0xED) return {.length = 3, .second_max = 0x9F};
  if (byte < 0xF0) return {.length = 3};
  if (byte == 0xF0) return {.length = 4, .second_min = 0x90};
  if (byte == 0xF4) return {.length = 4, .second_max = 0x8F};
  return {.length = 4};
}

bool is_ascii(char byte) {
  return static_cast<unsigned char>(byte) < 0x80;
}

}  // namespace

Utf8Unit first_utf8_unit(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  const Lead lead = classify(first);
  if (lead.length == 0) return {};
  if (lead.length == 1) return {Utf8Kind::kCharacter, 1, first};
  char32_t code_point = first & (0x7FU >> lead.length);
  for (std::uint32_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kIncomplete, i, 0};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3FU);
  }
  return {Utf8Kind::kCharacter, lead.length, code_point};
}

Utf8Unit last_utf8_unit(std::string_view bytes) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(4, bytes.size()); ++length) {
    const Utf8Unit unit = first_utf8_unit(bytes.substr(bytes.size() - length));
    if (unit.kind == Utf8Kind::kCharacter && unit.length_bytes == length) return unit;
  }
  return {};
}

std::size_t valid_utf8_prefix(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (is_ascii(bytes[at])) {
      ++at;
      continue;
    }
    const Utf8Unit unit = first_utf8_unit(bytes.substr(at));
    if (unit.kind != Utf8Kind::kCharacter) break;
    at += unit.length_bytes;
  }
  return at;
}

std::size_t append_repaired_utf8(std::string& out, std::string_view bytes) {
  for (;;) {
    const std::size_t valid = valid_utf8_prefix(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return 0;
    const Utf8Unit unit = first_utf8_unit(bytes);
    if (unit.kind == Utf8Kind::kIncomplete) return unit.length_bytes;
    out.append(kReplacementCharacter);
    bytes.remove_prefix(unit.length_bytes);
  }
}

}  // namespace metrale::engine
