// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/byte_alphabet.h"

#include <charconv>
#include <cstdint>
#include <system_error>

#include "engine/tokenizer/utf8.h"

namespace metrale::engine {
namespace {

constexpr std::int16_t kNoByte = -1;

// kByteCharacters reversed; the alphabet ends below U+0180.
constexpr std::array<std::int16_t, 0x180> kBytesOfCharacters = [] {
  std::array<std::int16_t, 0x180> bytes{};
  bytes.fill(kNoByte);
  for (std::size_t byte = 0; byte < kByteCharacters.size(); ++byte) {
    bytes[kByteCharacters[byte]] = static_cast<std::int16_t>(byte);
  }
  return bytes;
}();

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  while (!spelling.empty()) {
    const Utf8Unit unit = first_utf8_unit(spelling);
    if (unit.kind != Utf8Kind::kCharacter || unit.code_point >= kBytesOfCharacters.size())
      return std::nullopt;
    const std::int16_t byte = kBytesOfCharacters[unit.code_point];
    if (byte == kNoByte) return std::nullopt;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    spelling.remove_prefix(unit.length_bytes);
  }
  return bytes;
}

std::optional<unsigned char> byte_of_fallback_spelling(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling.back() != '>') return std::nullopt;
  unsigned char byte = 0;
  const char* digits_end = spelling.data() + 5;
  const auto [end, error] = std::from_chars(spelling.data() + 3, digits_end, byte, 16);
  if (error != std::errc{} || end != digits_end) return std::nullopt;
  return byte;
}

}  // namespace metrale::engine
