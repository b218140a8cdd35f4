// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/normalizer.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace metrale::engine {
namespace {

template <class... Steps>
Normalizer normalizer_of(Steps... steps) {
  std::vector<NormalizerStep> list;
  (list.emplace_back(std::move(steps)), ...);
  return Normalizer(std::move(list));
}

std::string nfc(std::string_view text) {
  return normalizer_of(NormalForm::kNfc).apply(text);
}
std::string nfkc(std::string_view text) {
  return normalizer_of(NormalForm::kNfkc).apply(text);
}

TEST(Normalizer, NfcComposes) {
  EXPECT_EQ(nfc("cafe\u0301"), "caf\u00e9");
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(nfc("\u212b"), "\u00c5");
}

TEST(Normalizer, NfcKeepsCompositionExclusionsApart) {
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");
}

TEST(Normalizer, MarksAreSortedByClassAndEqualOnesKept) {
  EXPECT_EQ(nfc("a\u0301\u0316"), nfc("a\u0316\u0301"));
  EXPECT_NE(nfc("x\u0301\u0300"), nfc("x\u0300\u0301"));
}

TEST(Normalizer, NfkcReplacesCompatibilityCharacters) {
  EXPECT_EQ(nfkc("\ufb01"), "fi");
  EXPECT_EQ(nfc("\ufb01"), "\ufb01");
  EXPECT_EQ(nfkc("\ufdfa"),
            "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647 \u0639\u0644\u064a\u0647 \u0648\u0633\u0644\u0645");
}

TEST(Normalizer, NulAndUnassignedCharactersPassThrough) {
  const std::string text("a\0b\u0378", 5);
  EXPECT_EQ(nfc(text), text);
}

// Exchanging neighbours until they are sorted would need hours.
TEST(Normalizer, LongRunOfUnsortedMarksIsSorted) {
  std::string unsorted = "x";
  std::string below;
  std::string above;
  for (int i = 0; i < 300000; ++i) {
    unsorted += "\u0305\u0332";
    below += "\u0332";
    above += "\u0305";
  }
  EXPECT_EQ(nfc(unsorted), "x" + below + above);
}

TEST(Normalizer, NfdAndNfkdTakeApart) {
  EXPECT_EQ(normalizer_of(NormalForm::kNfd).apply("\u00e9\ud55c\ufb01"), "e\u0301\u1112\u1161\u11ab\ufb01");
  EXPECT_EQ(normalizer_of(NormalForm::kNfkd).apply("\u00e9\ufb01"), "e\u0301fi");
}

TEST(Normalizer, PrependPutsItsTextBeforeTextThatBegins) {
  const Normalizer normalizer = normalizer_of(PrependStep{"_"});
  EXPECT_EQ(normalizer.apply("a"), "_a");
  EXPECT_EQ(normalizer.apply("_a"), "__a");
  EXPECT_EQ(normalizer.apply(""), "");
  EXPECT_EQ(normalizer.apply("a", /*continues=*/true), "a");
}

TEST(Normalizer, ReplaceChangesEveryMatch) {
  EXPECT_EQ(normalizer_of(ReplaceStep{Regex::from_literal(" ", "t"), "▁"}).apply(" a  b"), "▁a▁▁b");
  EXPECT_EQ(normalizer_of(ReplaceStep{Regex::from_oniguruma(" {2,}", "t"), "$0"}).apply("a   b c"), "a$0b c");
}

TEST(Normalizer, LowercaseGoesCharacterByCharacter) {
  EXPECT_EQ(normalizer_of(LowercaseStep{}).apply("ABC ÄÖ ΑΣ İ ẞ"), "abc äö ασ i\u0307 ß");
}

TEST(Normalizer, StripAccentsTakesMarksOut) {
  EXPECT_EQ(normalizer_of(StripAccentsStep{}).apply("e\u0301\u0488x\u0903é"), "exé");
  EXPECT_EQ(normalizer_of(NormalForm::kNfd, StripAccentsStep{}).apply("é"), "e");
}

TEST(Normalizer, StripTakesWhiteSpaceOffTheAskedEnds) {
  EXPECT_EQ(normalizer_of(StripStep{.left = true, .right = false}).apply(" \u3000a \n"), "a \n");
  EXPECT_EQ(normalizer_of(StripStep{.left = false, .right = true}).apply(" \u3000a \n"), " \u3000a");
  EXPECT_EQ(normalizer_of(StripStep{}).apply(" \n"), "");
}

TEST(Normalizer, AsciiAndNoFormsAreKept) {
  EXPECT_TRUE(normalizer_of(NormalForm::kNfc).keeps("plain text"));
  EXPECT_FALSE(normalizer_of(NormalForm::kNfc).keeps("é"));
  EXPECT_FALSE(normalizer_of(LowercaseStep{}).keeps("plain text"));
  EXPECT_TRUE(normalizer_of().keeps("é"));
}

}  // namespace
}  // namespace metrale::engine
