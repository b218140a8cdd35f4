// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/normalizer.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace metrale::engine {
namespace {

std::string nfc(std::string_view text) {
  return Normalizer({NormalForm::kNfc}).apply(text);
}
std::string nfkc(std::string_view text) {
  return Normalizer({NormalForm::kNfkc}).apply(text);
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

TEST(Normalizer, AsciiAndNoFormsAreKept) {
  EXPECT_TRUE(Normalizer({NormalForm::kNfc}).keeps("plain text"));
  EXPECT_FALSE(Normalizer({NormalForm::kNfc}).keeps("é"));
  EXPECT_TRUE(Normalizer({}).keeps("é"));
}

}  // namespace
}  // namespace metrale::engine
