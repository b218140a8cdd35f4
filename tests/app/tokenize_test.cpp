// SPDX-License-Identifier: Apache-2.0
// metrale tokenize over the tiny model's byte-level vocabulary: ids 0 to 255 are the bytes in order.
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/program.h"

namespace metrale::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Tokenize : ProgramTest {
  [[nodiscard]] ProcessResult tokenize(std::vector<std::string> arguments,
                                       const ProcessOptions& options = {}) const {
    arguments.insert(arguments.begin(), {"tokenize", model()});
    return metrale(std::move(arguments), options);
  }
};

TEST_F(Tokenize, ShowsEachTokenWithItsId) {
  const ProcessResult result = tokenize({"--text", "Z<|im_end|>\n\\\xE4\xB8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "    90 -> 'Z'\n   258 -> '<|im_end|>'\n    10 -> '\\n'\n    92 -> '\\\\'\n   228 -> '\\xE4'\n   "
            "184 -> '\\xB8'\n");
}

TEST_F(Tokenize, TakesAFileAsPathAndTextFromStandardInput) {
  dir.write("text", "et");
  const std::string merged = tokenize({"-f", dir.file("text"), "--only-ids"}).out;
  EXPECT_EQ(tokenize({"--only-ids"}, {.input = "et"}).out, merged);
  EXPECT_EQ(metrale({"tokenize", model() + "/tokenizer.json", "--text", "et", "--only-ids"}).out, merged);
  EXPECT_EQ(tokenize({"--text", "et", "--count"}).out, "1\n");
  EXPECT_EQ(tokenize({"--text", "", "--count"}).out, "0\n");
}

TEST_F(Tokenize, JsonHasPiecesAndPlaces) {
  const json answer = json::parse(tokenize({"--text", "Z Et", "--json"}).out);
  EXPECT_EQ(answer["count"], answer["tokens"].size());
  EXPECT_EQ(answer["tokens"][0],
            (json{{"id", 90}, {"piece", "Z"}, {"token", "Z"}, {"special", false}, {"begin", 0}, {"end", 1}}));
  EXPECT_EQ(answer["tokens"][1]["token"], "Ġ");
  EXPECT_EQ(answer["tokens"][1]["piece"], " ");
  EXPECT_EQ(answer["tokens"].back()["end"], 4);
  EXPECT_EQ(json::parse(tokenize({"--text", "Z", "--count", "--json"}).out), (json{{"count", 1}}));
  EXPECT_EQ(json::parse(tokenize({"--text", "Z", "--only-ids", "--json"}).out), json::array({90}));
}

TEST_F(Tokenize, IdsAreShownAndDecoded) {
  EXPECT_EQ(tokenize({"--ids", "90,258"}).out, "    90 -> 'Z'\n   258 -> '<|im_end|>'\n");
  EXPECT_EQ(tokenize({"--ids", "90,258,33", "--decode"}).out, "Z<|im_end|>!\n");
  EXPECT_EQ(tokenize({"--ids", "90,258,33", "--decode", "--no-special"}).out, "Z!\n");
  EXPECT_EQ(json::parse(tokenize({"--ids", "90", "--decode", "--json"}).out), (json{{"text", "Z"}}));
  EXPECT_EQ(tokenize({"--decode"}, {.input = "90, 33\n"}).out, "Z!\n");
}

TEST_F(Tokenize, SpecialTokensAreTextWhereAsked) {
  EXPECT_EQ(tokenize({"--text", "<|im_end|>", "--count"}).out, "1\n");
  EXPECT_GT(std::stoi(tokenize({"--text", "<|im_end|>", "--count", "--no-parse-special"}).out), 5);
}

TEST_F(Tokenize, FrameIsAddedUnlessItIsRefused) {
  json tokenizer = json::parse(std::ifstream(model() + "/tokenizer.json"));
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens",
       {{"<|endoftext|>", {{"id", "<|endoftext|>"}, {"ids", {256}}, {"tokens", {"<|endoftext|>"}}}}}}};
  dir.write("model/tokenizer.json", tokenizer.dump());
  EXPECT_EQ(tokenize({"--text", "Z", "--only-ids"}).out, "256,90\n");
  EXPECT_EQ(tokenize({"--text", "Z", "--only-ids", "--no-special"}).out, "90\n");
  const json answer = json::parse(tokenize({"--text", "Z", "--json"}).out);
  EXPECT_EQ(answer["tokens"][0]["begin"], nullptr);
  EXPECT_EQ(answer["tokens"][1]["begin"], 0);
}

TEST_F(Tokenize, PlacesAreNullWhereTheTextWasChanged) {
  json tokenizer = json::parse(std::ifstream(model() + "/tokenizer.json"));
  tokenizer["normalizer"] = {{"type", "NFC"}};
  dir.write("model/tokenizer.json", tokenizer.dump());
  const json answer = json::parse(tokenize({"--text", "Ze\u0301", "--json"}).out);
  for (const json& token : answer["tokens"]) EXPECT_EQ(token["begin"], nullptr);
}

TEST_F(Tokenize, WrongInputIsToldWithItsCode) {
  EXPECT_EQ(tokenize({"--ids", "1,x"}).exit_code, 2);
  EXPECT_THAT(tokenize({"--ids", "1,x"}).err, HasSubstr("--ids: 'x' (entry 2) is no token id"));
  EXPECT_THAT(tokenize({"--ids", "99999"}).err, HasSubstr("token id 99999 is outside the vocabulary"));
  EXPECT_EQ(tokenize({"--ids", "99999"}).exit_code, 2);
  EXPECT_EQ(tokenize({"--text", "a", "--ids", "1"}).exit_code, 2);
  EXPECT_EQ(tokenize({"--text", "a", "--count", "--only-ids"}).exit_code, 2);
  EXPECT_EQ(metrale({"tokenize", dir.file("nowhere")}).exit_code, 4);
  EXPECT_EQ(metrale({"tokenize", model() + "/config.json", "--text", "a"}).exit_code, 3);
  dir.write("model/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  EXPECT_EQ(tokenize({"--text", "a"}).exit_code, 6);
}

}  // namespace
}  // namespace metrale::test
