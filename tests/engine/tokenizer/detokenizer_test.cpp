// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/engine/detokenizer.h>

#include "engine/tokenizer/utf8.h"
#include "tiny_tokenizer.h"

namespace metrale::engine {
namespace {

TEST(Detokenizer, SplitCharacterComesOutWithItsLastByte) {
  const Tokenizer tokenizer = tokenizer_of(tiny_json());
  Detokenizer detokenizer(tokenizer);

  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push(0x98), "");
  EXPECT_EQ(detokenizer.push(0x80), "😀");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, BrokenSequenceIsReplacedAsSoonAsItIsKnownToBeBroken) {
  const Tokenizer tokenizer = tokenizer_of(tiny_json());
  Detokenizer detokenizer(tokenizer);

  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.push(0x82), "");
  EXPECT_EQ(detokenizer.push('x'), "\uFFFDx");
  EXPECT_EQ(detokenizer.push(0xFF), "\uFFFD");
}

TEST(Detokenizer, FinishReplacesWhatIsHeldBackAndStartsAfresh) {
  const Tokenizer tokenizer = tokenizer_of(tiny_json());
  Detokenizer detokenizer(tokenizer);

  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "");
  EXPECT_EQ(detokenizer.push('a'), "a");
}

TEST(Detokenizer, SpecialTokensAreLeftOutOrShownAsAsked) {
  nlohmann::json document = tiny_json();
  const TokenId end = add_token(document, "<end>", {{"special", true}});
  const Tokenizer tokenizer = tokenizer_of(document);

  EXPECT_EQ(Detokenizer(tokenizer, true).push(end), "");
  EXPECT_EQ(Detokenizer(tokenizer, false).push(end), "<end>");
}

TEST(Detokenizer, WrongIdThrowsAndChangesNothing) {
  const Tokenizer tokenizer = tokenizer_of(tiny_json());
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(0xC3), "");

  EXPECT_THROW((void)detokenizer.push(256), InvalidArgument);
  EXPECT_THROW((void)detokenizer.push(-1), InvalidArgument);

  EXPECT_EQ(detokenizer.push(0xA9), "é");
}

TEST(Detokenizer, PushesJoinedEqualTheWholeDecode) {
  const Tokenizer tokenizer = golden_tokenizer("gpt2");
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<TokenId> byte_tokens;
  for (int byte = 0; byte < 256; ++byte) {
    byte_tokens.push_back(*tokenizer.token_id(spelling_of_byte(static_cast<unsigned char>(byte))));
  }
  for (int round = 0; round < 20000; ++round) {
    std::vector<TokenId> ids(random() % 12);
    const bool bytes_only = random() % 2 == 0;
    for (TokenId& id : ids) {
      // High bytes make sequences that nearly are valid.
      id = bytes_only ? byte_tokens[random() % 4 == 0 ? random() % 256 : 0x80 + random() % 128]
                      : static_cast<TokenId>(random() % tokenizer.vocab_size());
    }
    const bool skip_special = random() % 2 == 0;
    Detokenizer detokenizer(tokenizer, skip_special);
    std::string joined;
    for (const TokenId id : ids) {
      const std::string part = detokenizer.push(id);
      ASSERT_EQ(valid_utf8_prefix(part), part.size());
      joined += part;
    }
    joined += detokenizer.finish();
    ASSERT_EQ(joined, tokenizer.decode(ids, skip_special)) << testing::PrintToString(ids);
  }
}

TEST(Detokenizer, DecoderTakesTheFirstSpaceOffTheTextOnly) {
  const Tokenizer tokenizer = tokenizer_of(characters_json({"▁", "a"}));
  const TokenId mark = *tokenizer.token_id("▁");
  const TokenId a = *tokenizer.token_id("a");
  Detokenizer detokenizer(tokenizer);

  EXPECT_EQ(detokenizer.push(mark), "");
  EXPECT_EQ(detokenizer.push(mark), " ");
  EXPECT_EQ(detokenizer.push(a), "a");
  EXPECT_EQ(detokenizer.push(mark), " ");
  EXPECT_EQ(detokenizer.finish(), "");
  EXPECT_EQ(detokenizer.push(mark), "");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{mark, mark, a}, false), " a");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{a, mark}, false), "a ");
}

TEST(Detokenizer, MetaspaceDropsTheMarksOfTheFirstToken) {
  nlohmann::json document = characters_json({"▁", "a"}, {"▁ ▁"});
  document["decoder"] = metaspace_json("always", true);
  const Tokenizer tokenizer = tokenizer_of(document);
  const TokenId marks = *tokenizer.token_id("▁▁");
  Detokenizer detokenizer(tokenizer);

  EXPECT_EQ(detokenizer.push(marks), "");
  EXPECT_EQ(detokenizer.push(marks), "  ");
  EXPECT_EQ(detokenizer.finish(), "");
  EXPECT_EQ(detokenizer.push(marks), "");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{marks, marks}, false), "  ");

  document["decoder"] = metaspace_json("never", true);
  EXPECT_EQ(tokenizer_of(document).decode(std::vector<TokenId>{marks, marks}, false), "    ");
}

TEST(Detokenizer, ByteTokensAreJoinedToCharacters) {
  const Tokenizer tokenizer = tokenizer_of(characters_json({"▁", "a"}));
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(0xC3 + 1), "");
  EXPECT_EQ(detokenizer.push(0xA9 + 1), "é");
  EXPECT_EQ(detokenizer.push(0xFF + 1), "\uFFFD");
}

}  // namespace
}  // namespace metrale::engine
