// SPDX-License-Identifier: Apache-2.0
// Broken and unsupported files: the message names the file, the field and what is wrong.
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/engine/tokenizer.h>

#include "tiny_tokenizer.h"

namespace metrale::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct BrokenFile {
  const char* message;
  std::function<void(json&)> damage;
};

template <class Expected>
void expect_refused(const std::vector<BrokenFile>& files) {
  for (const BrokenFile& file : files) {
    json document = tiny_json({"a b"});
    add_token(document, "<end>", {{"special", true}});
    file.damage(document);
    try {
      (void)Tokenizer::parse(document.dump(), "dir/tokenizer.json");
      ADD_FAILURE() << "accepted, expected: " << file.message;
    } catch (const Expected& error) {
      EXPECT_THAT(error.what(), HasSubstr("'dir/tokenizer.json'"));
      EXPECT_THAT(error.what(), HasSubstr(file.message));
    }
  }
}

TEST(TokenizerJson, IntactFileIsAccepted) {
  json document = tiny_json({"a b"});
  add_token(document, "<end>", {{"special", true}});
  EXPECT_EQ(tokenizer_of(document).vocab_size(), 258U);
}

TEST(TokenizerJson, EveryTruncationIsAFormatError) {
  const std::string whole = tiny_json({"a b"}).dump();
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    EXPECT_THROW((void)Tokenizer::parse(whole.substr(0, length), "f"), FormatError) << length;
  }
}

TEST(TokenizerJson, TextThatIsNoJsonIsAFormatError) {
  for (const char* text : {"", "hello", "[]", "{\"model\":", "\"\\ud800\"", "{\"a\":\"\xff\"}"}) {
    EXPECT_THROW((void)Tokenizer::parse(text, "f"), FormatError) << text;
  }
}

TEST(TokenizerJson, BrokenVocabularyIsAFormatError) {
  expect_refused<FormatError>({
      {"model is missing", [](json& d) { d.erase("model"); }},
      {"model must be an object, is a string", [](json& d) { d["model"] = "x"; }},
      {"model.vocab is missing", [](json& d) { d["model"].erase("vocab"); }},
      {"model.vocab must be an object, is an array", [](json& d) { d["model"]["vocab"] = json::array(); }},
      {"model.vocab is empty", [](json& d) { d["model"]["vocab"] = json::object(); }},
      {"gives \"a\" the id -1, which is no token id", [](json& d) { d["model"]["vocab"]["a"] = -1; }},
      {"gives \"a\" the id 1.5, which", [](json& d) { d["model"]["vocab"]["a"] = 1.5; }},
      {"gives \"a\" the id \"7\", which", [](json& d) { d["model"]["vocab"]["a"] = "7"; }},
      {"gives \"a\" the id 99999999999, which", [](json& d) { d["model"]["vocab"]["a"] = 99999999999; }},
      {"gives \"a\" the id 1000, but there are 258 tokens: ids must be 0 to 257 without gaps",
       [](json& d) { d["model"]["vocab"]["a"] = 1000; }},
      {"the id 98, which is that of", [](json& d) { d["model"]["vocab"]["a"] = 98; }},
      {"ids must be 0 to 256 without gaps", [](json& d) { d["model"]["vocab"].erase("z"); }},
      {"model.unk_token \"<none>\" is not in model.vocab",
       [](json& d) { d["model"]["unk_token"] = "<none>"; }},
  });
}

TEST(TokenizerJson, TokenGivenTwiceIsAFormatError) {
  std::string text = tiny_json().dump();
  const std::string entry = "\"vocab\":{";
  text.insert(text.find(entry) + entry.size(), "\"a\":97,");
  try {
    (void)Tokenizer::parse(text, "f");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.vocab has \"a\" twice"));
  }
}

TEST(TokenizerJson, BrokenMergesAreAFormatError) {
  expect_refused<FormatError>({
      {"model.merges is missing", [](json& d) { d["model"].erase("merges"); }},
      {"model.merges must be an array", [](json& d) { d["model"]["merges"] = 1; }},
      {"model.merges[0] joins \"a\" and \"漢\", but \"漢\" is not in model.vocab",
       [](json& d) { d["model"]["merges"] = {"a 漢"}; }},
      {"model.merges[1] joins \"a\" and \"c\", but \"ac\" is not in model.vocab",
       [](json& d) { d["model"]["merges"] = json::array({"a b", json::array({"a", "c"})}); }},
      {"model.merges[0] must be two tokens with a space between: \"ab\"",
       [](json& d) { d["model"]["merges"] = {"ab"}; }},
      {"model.merges[0] must be two tokens", [](json& d) { d["model"]["merges"] = {"a b c"}; }},
      {"model.merges[0] must name two tokens",
       [](json& d) { d["model"]["merges"] = json::array({json::array({"a"})}); }},
      {"model.merges[0][1] must be a string, is a number 5",
       [](json& d) { d["model"]["merges"] = json::array({json::array({"a", 5})}); }},
      {"model.merges[0] must be a string, is a number 5", [](json& d) { d["model"]["merges"] = {5}; }},
  });
}

TEST(TokenizerJson, BrokenAddedTokensAreAFormatError) {
  expect_refused<FormatError>({
      {"added_tokens must be an array", [](json& d) { d["added_tokens"] = 5; }},
      {"added_tokens[0].id is missing", [](json& d) { d["added_tokens"][0].erase("id"); }},
      {"added_tokens[0].id is -4, no token id", [](json& d) { d["added_tokens"][0]["id"] = -4; }},
      {"added_tokens[0].content is empty", [](json& d) { d["added_tokens"][0]["content"] = ""; }},
      {"added_tokens[0].content has 1025 bytes; 1024 at most",
       [](json& d) { d["added_tokens"][0]["content"] = std::string(1025, 'x'); }},
      {"added_tokens[0].special must be true or false, is a number 1",
       [](json& d) { d["added_tokens"][0]["special"] = 1; }},
      {"added_tokens gives \"<end>\" the id 300, but there are 258 tokens",
       [](json& d) { d["added_tokens"][0]["id"] = 300; }},
      {"added_tokens gives \"<end>\" the id 97, which is that of \"a\"",
       [](json& d) { d["added_tokens"][0]["id"] = 97; }},
      {"added_tokens gives \"b\" the id 257, model.vocab 98",
       [](json& d) { d["added_tokens"][0]["content"] = "b"; }},
      {"added_tokens has \"<end>\" twice",
       [](json& d) { d["added_tokens"].push_back(d["added_tokens"][0]); }},
  });
}

TEST(TokenizerJson, BrokenStepsAreAFormatError) {
  const json split = {
      {"type", "Split"}, {"pattern", {{"String", ""}}}, {"behavior", "Isolated"}, {"invert", false}};
  const json special = {{"SpecialToken", {{"id", "<x>"}, {"type_id", 0}}}};
  expect_refused<FormatError>({
      {"pre_tokenizer.type is missing", [](json& d) { d["pre_tokenizer"].erase("type"); }},
      {"pre_tokenizer.add_prefix_space is missing",
       [](json& d) { d["pre_tokenizer"].erase("add_prefix_space"); }},
      {"pre_tokenizer.pattern.String is empty", [&](json& d) { d["pre_tokenizer"] = split; }},
      {"normalizer.normalizers is missing", [](json& d) { d["normalizer"] = {{"type", "Sequence"}}; }},
      {"post_processor.single[0].SpecialToken.id \"<x>\" is not among the special_tokens",
       [&](json& d) {
         d["post_processor"] = {
             {"type", "TemplateProcessing"}, {"single", {special}}, {"special_tokens", json::object()}};
       }},
      {"post_processor.special_tokens.<x>.ids[0] is 258, outside the vocabulary of 258 tokens",
       [&](json& d) {
         d["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {special}},
                                {"special_tokens", {{"<x>", {{"ids", {258}}}}}}};
       }},
  });
}

TEST(TokenizerJson, WhatIsNotSupportedIsNamedWithItsValue) {
  const json byte_level = tiny_json()["pre_tokenizer"];
  const auto split = [](const char* pattern) {
    return json{
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  };
  const auto sequence = [](std::vector<json> parts) {
    return json{{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
  };
  const json frame = {{"type", "TemplateProcessing"},
                      {"single", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                      {"special_tokens", json::object()}};
  expect_refused<Unsupported>({
      {"version = \"2.0\"", [](json& d) { d["version"] = "2.0"; }},
      {"model.type = \"Unigram\"; supported: BPE", [](json& d) { d["model"]["type"] = "Unigram"; }},
      {"model.byte_fallback = true; supported: false where the pre_tokenizer ends with ByteLevel",
       [](json& d) { d["model"]["byte_fallback"] = true; }},
      {"model.dropout = 0.1", [](json& d) { d["model"]["dropout"] = 0.1; }},
      {"model.end_of_word_suffix = \"</w>\"", [](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }},
      {"normalizer.type = \"Nmt\"; supported: NFC, NFKC, NFD, NFKD, Prepend",
       [](json& d) { d["normalizer"] = {{"type", "Nmt"}}; }},
      {"pre_tokenizer.type = \"Whitespace\"; supported: ByteLevel, Metaspace",
       [](json& d) { d["pre_tokenizer"] = {{"type", "Whitespace"}}; }},
      {"pre_tokenizer.prepend_scheme = \"last\"; supported: always, first, never",
       [](json& d) {
         d["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
       }},
      {"decoder.type = \"ByteLevel\"; supported: Metaspace, or Replace",
       [&](json& d) { d["pre_tokenizer"] = split("a"); }},
      {"decoder.type = \"Metaspace\"; supported: ByteLevel, as the pre_tokenizer ends with it",
       [](json& d) { d["decoder"] = {{"type", "Metaspace"}, {"replacement", "_"}}; }},
      {"pre_tokenizer.pretokenizers[1].type = \"Split\"; supported: ByteLevel last",
       [&](json& d) { d["pre_tokenizer"] = sequence({byte_level, split("a")}); }},
      {"pre_tokenizer.pretokenizers[0].pattern, does not support a class in a class at byte 2 of the pattern "
       "'[a[b]]'",
       [&](json& d) { d["pre_tokenizer"] = sequence({split("[a[b]]"), byte_level}); }},
      {"pre_tokenizer.pretokenizers[0].pattern, does not support the pattern '(a': missing closing "
       "parenthesis",
       [&](json& d) { d["pre_tokenizer"] = sequence({split("(a"), byte_level}); }},
      {"pre_tokenizer.behavior = \"Odd\"; supported: Removed",
       [&](json& d) {
         d["pre_tokenizer"] = split("a");
         d["pre_tokenizer"]["behavior"] = "Odd";
       }},
      {"post_processor.type = \"BertProcessing\"",
       [](json& d) { d["post_processor"] = {{"type", "BertProcessing"}}; }},
      {"post_processor.single = []; supported: one Sequence, of id A",
       [](json& d) { d["post_processor"] = {{"type", "TemplateProcessing"}, {"single", json::array()}}; }},
      {"post_processor.processors[1].type = \"TemplateProcessing\"; supported: one TemplateProcessing",
       [&](json& d) { d["post_processor"] = {{"type", "Sequence"}, {"processors", {frame, frame}}}; }},
      {"decoder = null; supported: ByteLevel, Metaspace, Sequence", [](json& d) { d["decoder"] = nullptr; }},
      {"decoder.type = \"WordPiece\"; supported: ByteLevel",
       [](json& d) { d["decoder"] = {{"type", "WordPiece"}}; }},
  });
}

TEST(TokenizerJson, BrokenStepsOfCharactersAreNamed) {
  const auto refused = [](const json& document) {
    try {
      (void)Tokenizer::parse(document.dump(), "f");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  json document = characters_json({"a"});
  document["decoder"]["decoders"][3]["stop"] = 1;
  EXPECT_THAT(refused(document), HasSubstr("decoder.decoders[3].stop = 1; supported: 0"));
  document = characters_json({"a"});
  document["decoder"]["decoders"][3]["content"] = "ab";
  EXPECT_THAT(refused(document), HasSubstr("decoder.decoders[3].content must be one character, is \"ab\""));
  document = characters_json({"a"});
  std::swap(document["decoder"]["decoders"][0], document["decoder"]["decoders"][1]);
  EXPECT_THAT(refused(document),
              HasSubstr("decoder.decoders[1].type = \"Replace\"; supported: Metaspace, or"));
  document = characters_json({"a"});
  document["normalizer"]["normalizers"][0].erase("prepend");
  EXPECT_THAT(refused(document), HasSubstr("normalizer.normalizers[0].prepend is missing"));
  document = characters_json({"a"});
  document["pre_tokenizer"] = metaspace_json("always", true);
  document["pre_tokenizer"]["replacement"] = "";
  EXPECT_THAT(refused(document), HasSubstr("pre_tokenizer.replacement must be one character, is \"\""));
  document["pre_tokenizer"] = metaspace_json("first", true);
  document["pre_tokenizer"]["add_prefix_space"] = false;
  EXPECT_THAT(refused(document), HasSubstr("is \"first\" though add_prefix_space is false"));
}

TEST(TokenizerJson, OldFilesWithoutTypesAndWithAVersionLineAreRead) {
  json document = tiny_json({"a b"});
  document["model"].erase("type");
  document["model"]["merges"] = {"#version: 0.2", "a b"};
  EXPECT_EQ(tokenizer_of(document).encode("ab"), std::vector<TokenId>{256});
}

}  // namespace
}  // namespace metrale::engine
