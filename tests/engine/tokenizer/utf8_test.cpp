// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/utf8.h"

#include <optional>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "engine/tokenizer/byte_alphabet.h"
#include "tiny_tokenizer.h"

namespace metrale::engine {
namespace {

std::string repaired(std::string_view bytes) {
  std::string text;
  if (append_repaired_utf8(text, bytes) != 0) text += kReplacementCharacter;
  return text;
}

TEST(Utf8, EveryCodePointIsReadBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string bytes;
    append_utf8(bytes, c);
    const Utf8Unit unit = first_utf8_unit(bytes);
    if (c >= 0xD800 && c <= 0xDFFF) {
      ASSERT_EQ(unit.kind, Utf8Kind::kInvalid) << static_cast<std::uint32_t>(c);
      continue;
    }
    ASSERT_EQ(unit.kind, Utf8Kind::kCharacter) << static_cast<std::uint32_t>(c);
    ASSERT_EQ(unit.code_point, c);
    ASSERT_EQ(unit.length_bytes, bytes.size());
    ASSERT_EQ(last_utf8_unit("x" + bytes).code_point, c);
  }
}

// The table of the Unicode standard, chapter 3, "U+FFFD substitution of maximal subparts".
TEST(Utf8, EachMaximalInvalidPartBecomesOneReplacement) {
  EXPECT_EQ(repaired("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(repaired("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41");
  EXPECT_EQ(repaired("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\x41\uFFFD\uFFFD\x42");
  EXPECT_EQ(repaired("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFD\x41");
}

TEST(Utf8, BeginningOfACharacterAtTheEndIsHeldBack) {
  std::string text;
  EXPECT_EQ(append_repaired_utf8(text, "ab\xF0\x9F\x98"), 3U);
  EXPECT_EQ(text, "ab");
}

TEST(Utf8, RepairInTwoPartsEqualsRepairOfTheWhole) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 8, '\0');
    for (char& byte : bytes)
      byte = static_cast<char>(random() % 3 == 0 ? random() % 256 : 0x80 + random() % 128);
    const std::size_t cut = random() % (bytes.size() + 1);
    std::string text;
    const std::size_t held = append_repaired_utf8(text, bytes.substr(0, cut));
    text += repaired(bytes.substr(cut - held));
    ASSERT_EQ(text, repaired(bytes));
  }
}

TEST(ByteAlphabet, SpellsEveryByteAsItsOwnCharacter) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelling = spelling_of_byte(static_cast<unsigned char>(byte));
    ASSERT_EQ(bytes_of_spelling(spelling), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(spelling_of_byte(' '), "Ġ");
  EXPECT_EQ(spelling_of_byte('\n'), "Ċ");
  EXPECT_EQ(spelling_of_byte(0xAD), "Ń");
}

TEST(ByteAlphabet, CharacterOutsideItMakesASpellingNoBytes) {
  EXPECT_EQ(bytes_of_spelling("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_spelling("漢"), std::nullopt);
}

}  // namespace
}  // namespace metrale::engine
