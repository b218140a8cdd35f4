// SPDX-License-Identifier: Apache-2.0
// How vocabularies spell bytes. The byte alphabet of GPT-2: every byte is spelled as one printable character,
// so that a token's spelling is text even where its bytes are not. Printable Latin-1 stands for itself, the
// rest for U+0100 and up.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace metrale::engine {

// The character of each byte.
inline constexpr std::array<char16_t, 256> kByteCharacters = [] {
  std::array<char16_t, 256> characters{};
  char16_t next = 0x100;
  for (std::size_t byte = 0; byte < characters.size(); ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters[byte] = printable ? static_cast<char16_t>(byte) : next++;
  }
  return characters;
}();

// The bytes that a spelling stands for; nullopt where it has a character outside the alphabet.
[[nodiscard]] std::optional<std::string> bytes_of_spelling(std::string_view spelling);

// The byte of "<0x0A>", which is how vocabularies of characters spell single bytes; nullopt for anything
// else.
[[nodiscard]] std::optional<unsigned char> byte_of_fallback_spelling(std::string_view spelling);

}  // namespace metrale::engine
