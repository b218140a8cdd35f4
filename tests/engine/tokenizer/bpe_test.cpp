// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tiny_tokenizer.h"

namespace metrale::engine {
namespace {

using Pieces = std::vector<std::string>;

// Merges of random pairs over a small alphabet, no two with the same result.
std::vector<std::string> random_merges(std::mt19937& random, std::size_t count,
                                       Pieces tokens = {"a", "b", "c"}) {
  std::vector<std::string> merges;
  for (std::size_t tries = 0; tries < 20 * count && merges.size() < count; ++tries) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
    tokens.push_back(left + right);
    merges.push_back(left + " " + right);
  }
  std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

// The definition: merge the pair of the smallest rank, the leftmost one, until none is left.
Pieces merge_slowly(Pieces pieces, const std::vector<std::string>& merges) {
  for (;;) {
    std::size_t best_rank = merges.size();
    std::size_t best_at = 0;
    for (std::size_t at = 0; at + 1 < pieces.size(); ++at) {
      const auto merge = std::find(merges.begin(), merges.end(), pieces[at] + " " + pieces[at + 1]);
      const auto rank = static_cast<std::size_t>(merge - merges.begin());
      if (rank < best_rank) {
        best_rank = rank;
        best_at = at;
      }
    }
    if (best_rank == merges.size()) return pieces;
    pieces[best_at] += pieces[best_at + 1];
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

Pieces bytes_of(const std::string& text) {
  Pieces pieces;
  for (const char c : text) pieces.emplace_back(1, c);
  return pieces;
}

Pieces spellings_of(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  Pieces spellings;
  for (const TokenId id : ids) spellings.emplace_back(tokenizer.token_spelling(id));
  return spellings;
}

TEST(Bpe, MergesLikeTheSlowDefinition) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    const std::vector<std::string> merges = random_merges(random, 1 + random() % 30);
    const Tokenizer tokenizer = tokenizer_of(tiny_json(merges));
    for (int sample = 0; sample < 20; ++sample) {
      std::string text(1 + random() % 40, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 3);
      ASSERT_EQ(pieces_of(tokenizer, text), merge_slowly(bytes_of(text), merges))
          << text << testing::PrintToString(merges);
    }
  }
}

// What a text of these characters begins as: "漢" and "ß" have no token of their own, and "ß" lacks one of
// its bytes.
Pieces first_symbols(const Pieces& characters, bool fuse) {
  Pieces symbols;
  bool unknown_waits = false;
  const auto put_unknown = [&] {
    if (unknown_waits) symbols.emplace_back("<unk>");
    unknown_waits = false;
  };
  for (const std::string& character : characters) {
    if (character == "漢") {
      for (const char* byte : {"<0xE6>", "<0xBC>", "<0xA2>"}) symbols.emplace_back(byte);
    } else if (character == "ß") {
      if (!fuse) put_unknown();
      unknown_waits = true;
    } else {
      put_unknown();
      symbols.push_back(character);
    }
  }
  put_unknown();
  return symbols;
}

TEST(Bpe, CharactersMergeLikeTheSlowDefinition) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const Pieces alphabet = {"▁", "a", "é", "😀", "漢", "ß"};
  const Pieces mergeable = {"▁", "a", "é", "😀", "<0xE6>", "<0xBC>", "<0xA2>", "<unk>"};
  for (int round = 0; round < 60; ++round) {
    const std::vector<std::string> merges = random_merges(random, 1 + random() % 40, mergeable);
    nlohmann::json document = characters_json({"▁", "a", "é", "😀", "spare"}, merges);
    // Byte C3 of "ß" gets another name, so that the ids stay without gaps.
    document["model"]["vocab"]["taken"] = document["model"]["vocab"]["<0xC3>"];
    document["model"]["vocab"].erase("<0xC3>");
    document["normalizer"] = nullptr;
    const bool fuse = random() % 2 == 0;
    document["model"]["fuse_unk"] = fuse;
    const Tokenizer tokenizer = tokenizer_of(document);
    for (int sample = 0; sample < 20; ++sample) {
      Pieces characters;
      for (std::size_t i = 1 + random() % 30; i > 0; --i)
        characters.push_back(alphabet[random() % alphabet.size()]);
      std::string text;
      for (const std::string& character : characters) text += character;
      ASSERT_EQ(spellings_of(tokenizer, tokenizer.encode(text)),
                merge_slowly(first_symbols(characters, fuse), merges))
          << text << testing::PrintToString(merges);
    }
  }
}

TEST(Bpe, CharacterFallsBackToItsBytes) {
  const Tokenizer tokenizer = tokenizer_of(characters_json({"▁", "a"}));
  EXPECT_EQ(spellings_of(tokenizer, tokenizer.encode("aé\n")),
            (Pieces{"▁", "a", "<0xC3>", "<0xA9>", "<0x0A>"}));
}

// The order of the `tokenizers` package: the unknown token waits for a character that has one of its own.
TEST(Bpe, UnknownTokenComesBehindTheByteTokensAfterIt) {
  nlohmann::json document = characters_json({"a", "taken"});
  std::swap(document["model"]["vocab"]["<0xC3>"], document["model"]["vocab"]["taken"]);
  document["model"]["vocab"]["renamed"] = document["model"]["vocab"]["<0xC3>"];
  document["model"]["vocab"].erase("<0xC3>");
  document["normalizer"] = nullptr;
  const Tokenizer tokenizer = tokenizer_of(document);
  EXPECT_EQ(spellings_of(tokenizer, tokenizer.encode("aé漢éa")),
            (Pieces{"a", "<0xE6>", "<0xBC>", "<0xA2>", "<unk>", "a"}));
}

TEST(Bpe, WithoutFallbackOneUnknownTokenStandsForARun) {
  nlohmann::json document = characters_json({"▁", "a"});
  document["model"]["byte_fallback"] = false;
  EXPECT_EQ(tokenizer_of(document).encode("aéé漢a"), (std::vector<TokenId>{257, 258, 0, 258}));

  document["model"]["fuse_unk"] = false;
  EXPECT_EQ(tokenizer_of(document).encode("aéé漢a"), (std::vector<TokenId>{257, 258, 0, 0, 0, 258}));

  document["model"].erase("unk_token");
  EXPECT_EQ(tokenizer_of(document).encode("aéé漢a"), (std::vector<TokenId>{257, 258, 258}));
}

TEST(Bpe, LowerRankMergesFirstEvenIfItIsFurtherRight) {
  const Tokenizer tokenizer = tokenizer_of(tiny_json({"b c", "a b"}));
  EXPECT_EQ(pieces_of(tokenizer, "abc"), (Pieces{"a", "bc"}));
}

TEST(Bpe, EqualRanksMergeFromTheLeft) {
  const Tokenizer tokenizer = tokenizer_of(tiny_json({"a a"}));
  EXPECT_EQ(pieces_of(tokenizer, "aaa"), (Pieces{"aa", "a"}));
}

// A quadratic merge would need hours for these.
TEST(Bpe, RunsOfAMegabyteAreMerged) {
  std::vector<std::string> merges;
  for (std::size_t length = 1; length <= 512; length *= 2)
    merges.push_back(std::string(length, 'a') + " " + std::string(length, 'a'));
  const Tokenizer tokenizer = tokenizer_of(tiny_json(merges));
  constexpr std::size_t kMegabyte = std::size_t{1} << 20;

  EXPECT_EQ(tokenizer.encode(std::string(kMegabyte, 'a')).size(), kMegabyte / 1024);
  EXPECT_EQ(tokenizer.encode(std::string(kMegabyte, ' ')).size(), kMegabyte);
  EXPECT_EQ(tokenizer.encode(std::string(kMegabyte, ' ') + "x").size(), kMegabyte + 1);
}

TEST(Bpe, MegabyteWithoutPreTokenizerIsMerged) {
  std::vector<std::string> merges = {"▁ ▁", "▁▁ ▁▁"};
  const Tokenizer tokenizer = tokenizer_of(characters_json({"▁", "a"}, merges));
  constexpr std::size_t kMegabyte = std::size_t{1} << 20;
  EXPECT_EQ(tokenizer.encode(std::string(kMegabyte - 1, ' ')).size(), kMegabyte / 4);
  EXPECT_EQ(tokenizer.encode(std::string(kMegabyte, '\n')).size(), kMegabyte + 1);
}

TEST(Bpe, IgnoreMergesTakesAPieceThatIsAToken) {
  nlohmann::json document = tiny_json({"a b"});
  document["model"]["vocab"]["xyz"] = 257;
  EXPECT_EQ(pieces_of(tokenizer_of(document), "xyz ab"), (Pieces{"x", "y", "z", " ", "ab"}));

  document["model"]["ignore_merges"] = true;
  EXPECT_EQ(pieces_of(tokenizer_of(document), "xyz ab"), (Pieces{"xyz", " ", "ab"}));
}

TEST(Bpe, ByteWithoutATokenIsUnknownOrDropped) {
  nlohmann::json document = tiny_json();
  nlohmann::json vocab = {{"a", 0}, {"b", 1}, {"?", 2}};
  document["model"]["vocab"] = vocab;
  EXPECT_EQ(tokenizer_of(document).encode("azzb"), (std::vector<TokenId>{0, 1}));

  document["model"]["unk_token"] = "?";
  EXPECT_EQ(tokenizer_of(document).encode("azzb"), (std::vector<TokenId>{0, 2, 2, 1}));

  document["model"]["fuse_unk"] = true;
  EXPECT_EQ(tokenizer_of(document).encode("azzb"), (std::vector<TokenId>{0, 2, 1}));
}

}  // namespace
}  // namespace metrale::engine
