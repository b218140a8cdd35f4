// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tiny_tokenizer.h"

namespace metrale::engine {
namespace {

using Ids = std::vector<TokenId>;

TEST(AddedTokens, LongestOfThoseThatBeginAtAPlaceIsTaken) {
  nlohmann::json document = tiny_json();
  add_token(document, "<a>");
  const TokenId longer = add_token(document, "<a>b");
  EXPECT_EQ(tokenizer_of(document).encode("<a>b"), Ids{longer});
}

TEST(AddedTokens, LeftmostIsTakenThoughALongerOneOverlaps) {
  nlohmann::json document = tiny_json();
  const TokenId left = add_token(document, "xy");
  add_token(document, "yzzz");
  EXPECT_EQ(tokenizer_of(document).encode("xyzzz"), (Ids{left, 'z', 'z', 'z'}));
}

TEST(AddedTokens, StripFlagsTakeTheWhiteSpaceBesideTheToken) {
  nlohmann::json document = tiny_json();
  const TokenId left = add_token(document, "<l>", {{"lstrip", true}});
  const TokenId right = add_token(document, "<r>", {{"rstrip", true}});
  const Tokenizer tokenizer = tokenizer_of(document);
  EXPECT_EQ(tokenizer.encode("a \u3000\n<l> b"), (Ids{'a', left, ' ', 'b'}));
  EXPECT_EQ(tokenizer.encode("a <r> \u3000\nb"), (Ids{'a', ' ', right, 'b'}));
}

TEST(AddedTokens, SingleWordIsNotFoundInsideAWord) {
  nlohmann::json document = tiny_json();
  const TokenId cat = add_token(document, "cat", {{"single_word", true}});
  const Tokenizer tokenizer = tokenizer_of(document);
  EXPECT_EQ(tokenizer.encode("(cat)"), (Ids{'(', cat, ')'}));
  EXPECT_EQ(tokenizer.encode("cats"), (Ids{'c', 'a', 't', 's'}));
  EXPECT_EQ(tokenizer.encode("_cat"), (Ids{'_', 'c', 'a', 't'}));
  EXPECT_EQ(tokenizer.encode("écat"), (Ids{0xC3, 0xA9, 'c', 'a', 't'}));
}

TEST(AddedTokens, SpecialTokenIsTextWhereItIsNotParsed) {
  nlohmann::json document = tiny_json();
  const TokenId end = add_token(document, "<e>", {{"special", true}});
  const TokenId plain = add_token(document, "<p>");
  const Tokenizer tokenizer = tokenizer_of(document);
  EXPECT_EQ(tokenizer.encode("<e><p>", {.parse_special = true}), (Ids{end, plain}));
  EXPECT_EQ(tokenizer.encode("<e><p>", {.parse_special = false}), (Ids{'<', 'e', '>', plain}));
}

TEST(AddedTokens, NormalizedTokenIsFoundInTheNormalizedText) {
  nlohmann::json document = tiny_json();
  document["normalizer"] = {{"type", "NFC"}};
  const TokenId token = add_token(document, "cafe\u0301", {{"normalized", true}});
  const TokenId raw = add_token(document, "the\u0301");
  const Tokenizer tokenizer = tokenizer_of(document);
  EXPECT_EQ(tokenizer.encode("café"), Ids{token});
  EXPECT_EQ(tokenizer.encode("cafe\u0301"), Ids{token});
  EXPECT_EQ(tokenizer.encode("the\u0301"), Ids{raw});
  EXPECT_EQ(tokenizer.encode("thé"), (Ids{'t', 'h', 0xC3, 0xA9}));
}

// Each token would measure the same megabyte of white space again.
TEST(AddedTokens, StripTokensInOneLongRunOfSpaceAreFoundInLinearTime) {
  nlohmann::json document = tiny_json();
  const TokenId newline = add_token(document, "\n", {{"rstrip", true}});
  constexpr std::size_t kMegabyte = std::size_t{1} << 20;
  EXPECT_EQ(tokenizer_of(document).encode(std::string(kMegabyte, '\n')), Ids(kMegabyte, newline));
}

TEST(AddedTokens, InvalidBytesBesideATokenAreNeitherWordNorSpace) {
  nlohmann::json document = tiny_json();
  const TokenId cat = add_token(document, "cat", {{"single_word", true}, {"lstrip", true}, {"rstrip", true}});
  EXPECT_EQ(tokenizer_of(document).encode("\xFF cat \x80"), (Ids{0xFF, cat, 0x80}));
}

}  // namespace
}  // namespace metrale::engine
