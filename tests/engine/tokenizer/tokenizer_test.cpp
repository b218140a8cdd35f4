// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <string>
#include <support/temp_dir.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/engine/tokenizer.h>

#include "hard_strings.h"
#include "tiny_tokenizer.h"

namespace metrale::engine {
namespace {

using Ids = std::vector<TokenId>;

// The trained vocabulary alone: the golden file's added tokens drop white space by design.
Tokenizer tokenizer_without_added_tokens() {
  nlohmann::json document = golden_json("gpt2.json");
  document["added_tokens"] = nlohmann::json::array();
  return tokenizer_of(document);
}

std::string bytes_of(const Tokenizer& tokenizer, const Ids& ids) {
  std::string bytes;
  for (const TokenId id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

TEST(Tokenizer, DecodeOfEncodeIsTheText) {
  const Tokenizer tokenizer = tokenizer_without_added_tokens();
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const std::string text = random_text(random, random() % 60);
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text), false), text);
  }
}

TEST(Tokenizer, TokensOfAnyBytesAreThoseBytes) {
  const Tokenizer tokenizer = tokenizer_without_added_tokens();
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = random_text(random, random() % 20);
    for (std::size_t i = random() % 8; i > 0 && !bytes.empty(); --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    }
    ASSERT_EQ(bytes_of(tokenizer, tokenizer.encode(bytes)), bytes);
  }
}

TEST(Tokenizer, InvalidBytesBecomeTheTokensOfTheBytes) {
  const Tokenizer tokenizer = tokenizer_of(tiny_json({"a b"}));
  EXPECT_EQ(tokenizer.encode("ab\xFF\xE2\x82"
                             "ab"),
            (Ids{256, 0xFF, 0xE2, 0x82, 256}));
}

TEST(Tokenizer, InvalidBytesGetNoMergesAndNoPrefixSpaceAfterThem) {
  nlohmann::json document = tiny_json({"\u00e2 \u0124"});  // the spellings of bytes E2 82
  document["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(tokenizer_of(document).encode("a\xE2\x82"
                                          "b"),
            (Ids{' ', 'a', 0xE2, 0x82, 'b'}));
}

TEST(Tokenizer, CharactersRoundTripWithByteFallback) {
  const Tokenizer tokenizer = tokenizer_of(characters_json({"▁", "a", "é", "1"}, {"▁ a", "a a", "▁ ▁"}));
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = random_text(random, random() % 60);
    if (text.find("▁") != std::string::npos) continue;
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text), false), text);
  }
}

TEST(Tokenizer, InvalidBytesInAVocabularyOfCharactersAreByteTokensWithoutAPrefixBehindThem) {
  const Tokenizer tokenizer = tokenizer_of(characters_json({"▁", "a"}));
  EXPECT_EQ(tokenizer.encode("a\xFF\x80"
                             "a"),
            (Ids{257, 258, 0x100, 0x81, 258}));
}

TEST(Tokenizer, TemplateFramesTheTextWhereAsked) {
  nlohmann::json document = tiny_json();
  const TokenId bos = add_token(document, "<s>", {{"special", true}});
  const TokenId eos = add_token(document, "</s>", {{"special", true}});
  const auto special = [](const char* id) {
    return nlohmann::json{{"SpecialToken", {{"id", id}, {"type_id", 0}}}};
  };
  document["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {special("<s>"), {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, special("</s>"), special("</s>")}},
      {"special_tokens",
       {{"<s>", {{"id", "<s>"}, {"ids", {bos}}, {"tokens", {"<s>"}}}},
        {"</s>", {{"id", "</s>"}, {"ids", {eos}}, {"tokens", {"</s>"}}}}}}};
  const Tokenizer tokenizer = tokenizer_of(document);

  EXPECT_EQ(tokenizer.encode("a", {.add_special_tokens = true}), (Ids{bos, 'a', eos, eos}));
  EXPECT_EQ(tokenizer.encode("", {.add_special_tokens = true}), (Ids{bos, eos, eos}));
  EXPECT_EQ(tokenizer.encode("a", {.add_special_tokens = false}), Ids{'a'});
}

TEST(Tokenizer, TokensAreFoundBySpellingAndId) {
  nlohmann::json document = tiny_json({"\u0120 a"});
  const TokenId end = add_token(document, "<end of text>", {{"special", true}});
  const Tokenizer tokenizer = tokenizer_of(document);

  EXPECT_EQ(tokenizer.vocab_size(), 258U);
  EXPECT_EQ(tokenizer.token_id("Ġa"), 256);
  EXPECT_EQ(tokenizer.token_bytes(256), " a");
  EXPECT_EQ(tokenizer.token_id("<end of text>"), end);
  EXPECT_EQ(tokenizer.token_bytes(end), "<end of text>");
  EXPECT_EQ(tokenizer.token_id("absent"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(end));
  EXPECT_FALSE(tokenizer.is_special(256));
}

TEST(Tokenizer, IdOutsideTheVocabularyIsRefused) {
  const Tokenizer tokenizer = tokenizer_of(tiny_json());
  for (const TokenId id :
       {-1, 256, std::numeric_limits<TokenId>::max(), std::numeric_limits<TokenId>::min()}) {
    EXPECT_THROW((void)tokenizer.token_bytes(id), InvalidArgument);
    EXPECT_THROW((void)tokenizer.is_special(id), InvalidArgument);
    EXPECT_THROW((void)tokenizer.decode(Ids{0, id}, true), InvalidArgument);
  }
}

TEST(Tokenizer, PatternThatExplodesOnATextIsAnErrorNotAHang) {
  nlohmann::json document = tiny_json();
  document["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers",
                                {{{"type", "Split"},
                                  {"pattern", {{"Regex", "(?:a+)+[bc]"}}},
                                  {"behavior", "Isolated"},
                                  {"invert", false}},
                                 document["pre_tokenizer"]}}};
  const Tokenizer tokenizer = tokenizer_of(document);
  EXPECT_EQ(tokenizer.encode("aab").size(), 3U);
  EXPECT_THROW((void)tokenizer.encode(std::string(200, 'a')), InvalidArgument);
}

TEST(Tokenizer, ManyThreadsEncodeAtOnce) {
  const Tokenizer tokenizer = golden_tokenizer("qwen2");
  const std::vector<std::string> texts = hard_strings();
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer.encode(text));
  std::vector<std::size_t> wrong(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t& count : wrong) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i)
        count += tokenizer.encode(texts[i]) == expected[i] ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<std::size_t>(4, 0));
}

// As the sources of transformers 4.56 have it: LlamaTokenizerFast and GemmaTokenizerFast heed the flags,
// PreTrainedTokenizerFast and Qwen2TokenizerFast do not.
TEST(Tokenizer, ConfigBesideTheFileFramesTextsForTheClassesThatHeedIt) {
  const TempDir dir;
  nlohmann::json document = golden_json("sentencepiece.json");
  const std::string path = dir.write("tokenizer.json", document.dump());
  const auto framed = [&](const nlohmann::json& config) {
    dir.write("tokenizer_config.json", config.dump());
    return Tokenizer::load(path).encode("");
  };
  EXPECT_EQ(Tokenizer::load(path).encode(""), Ids{1});
  EXPECT_EQ(framed({{"tokenizer_class", "LlamaTokenizer"}}), Ids{1});
  EXPECT_EQ(framed({{"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", false}}), Ids{});
  EXPECT_EQ(framed({{"tokenizer_class", "LlamaTokenizerFast"}, {"add_eos_token", true}}), (Ids{1, 2}));
  EXPECT_EQ(framed({{"tokenizer_class", "GemmaTokenizer"}, {"bos_token", {{"content", "</s>"}}}}), Ids{2});
  EXPECT_EQ(framed({{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"add_bos_token", false},
                    {"add_eos_token", true}}),
            Ids{1});
  EXPECT_EQ(framed({{"tokenizer_class", "Qwen2Tokenizer"}, {"add_bos_token", false}}), Ids{1});
  EXPECT_THROW((void)framed({{"tokenizer_class", "GemmaTokenizer"}}), FormatError);
  EXPECT_THROW((void)framed({{"add_bos_token", "yes"}}), FormatError);
}

TEST(Tokenizer, SpecialTokensInPlainPartsAreText) {
  nlohmann::json document = tiny_json();
  const TokenId end = add_token(document, "<e>", {{"special", true}});
  const TokenId other = add_token(document, "<n>", {{"special", true}, {"normalized", true}});
  const TokenId added = add_token(document, "<p>");
  const Tokenizer tokenizer = tokenizer_of(document);
  const std::vector<TextRange> plain = {{3, 9}};
  EXPECT_EQ(tokenizer.encode("<e><e><p><e>", {.plain = plain}), (Ids{end, '<', 'e', '>', added, end}));
  EXPECT_EQ(tokenizer.encode("<n><n><p><n>", {.plain = plain}), (Ids{other, '<', 'n', '>', added, other}));
  const std::vector<TextRange> inside = {{1, 2}};
  EXPECT_EQ(tokenizer.encode("<e><e>", {.plain = inside}), (Ids{'<', 'e', '>', end}));
}

TEST(Tokenizer, LoadReadsAFileAndNamesAMissingOne) {
  const TempDir dir;
  const std::string path = dir.write("tokenizer.json", tiny_json().dump());
  EXPECT_EQ(Tokenizer::load(path).vocab_size(), 256U);
  EXPECT_THROW((void)Tokenizer::load(dir.file("absent.json")), IoError);
}

}  // namespace
}  // namespace metrale::engine
