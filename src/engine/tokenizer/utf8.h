// SPDX-License-Identifier: Apache-2.0
// UTF-8 read unit by unit: a character, an invalid part, or the beginning of a character at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace metrale::engine {

enum class Utf8Kind : std::uint8_t {
  kCharacter,   // a whole valid sequence
  kInvalid,     // a maximal part that nothing can complete (Unicode's "maximal subpart")
  kIncomplete,  // a valid beginning that the end of the bytes cuts off
};

struct Utf8Unit {
  Utf8Kind kind = Utf8Kind::kInvalid;
  std::uint32_t length_bytes = 1;
  char32_t code_point = 0;  // of a character
};

// The first unit of `bytes`, which must not be empty.
[[nodiscard]] Utf8Unit first_utf8_unit(std::string_view bytes);

// The character that ends `bytes`, or nothing valid: kInvalid.
[[nodiscard]] Utf8Unit last_utf8_unit(std::string_view bytes);

// How many bytes at the start of `bytes` are whole characters.
[[nodiscard]] std::size_t valid_utf8_prefix(std::string_view bytes);

// Appends `bytes` to `out` with U+FFFD for each invalid part; returns how many bytes at the end are the
// beginning of a character, which it does not append.
std::size_t append_repaired_utf8(std::string& out, std::string_view bytes);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace metrale::engine
