// SPDX-License-Identifier: Apache-2.0
// Ids and texts against the `tokenizers` package (scripts/golden/tokenizer_golden.py).
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/engine/detokenizer.h>
#include <metrale/engine/tokenizer.h>

#include "tiny_tokenizer.h"

namespace metrale::engine {
namespace {

using Ids = std::vector<TokenId>;

void expect_texts(const Tokenizer& tokenizer, const nlohmann::json& golden) {
  ASSERT_GE(golden["texts"].size(), 40U);
  for (const nlohmann::json& each : golden["texts"]) {
    const auto text = each["text"].get<std::string>();
    const auto ids = each["ids"].get<Ids>();
    SCOPED_TRACE(each["text"].dump());
    EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = false, .parse_special = true}), ids);
    EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = true, .parse_special = true}),
              each.value("framed", ids));
    EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = false, .parse_special = false}),
              each.value("plain", ids));
    EXPECT_EQ(tokenizer.decode(ids, false), each.value("decoded", text));
  }
}

void expect_decodes(const Tokenizer& tokenizer, const nlohmann::json& golden) {
  for (const nlohmann::json& each : golden["decodes"]) {
    const auto ids = each["ids"].get<Ids>();
    const auto all = each["all"].get<std::string>();
    EXPECT_EQ(tokenizer.decode(ids, false), all) << each.dump();
    EXPECT_EQ(tokenizer.decode(ids, true), each.value("shown", all)) << each.dump();
  }
}

class GoldenTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, TextsGiveTheReferenceIds) {
  ASSERT_GE(golden_json(std::string(GetParam()) + ".golden.json")["texts"].size(), 150U);
  expect_texts(golden_tokenizer(GetParam()), golden_json(std::string(GetParam()) + ".golden.json"));
}

TEST_P(GoldenTokenizer, IdsGiveTheReferenceText) {
  expect_decodes(golden_tokenizer(GetParam()), golden_json(std::string(GetParam()) + ".golden.json"));
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenTokenizer, testing::Values("digits", "template", "prefixed"),
                         [](const auto& file) { return std::string(file.param); });

TEST(SmolLm2Tokenizer, TextsGiveTheReferenceIds) {
  const std::string path = std::string(METRALE_SMOLLM2_DIR) + "/tokenizer.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent; './dev demo' fetches the model";
  expect_texts(Tokenizer::load(path), golden_json("smollm2.golden.json"));
}

}  // namespace
}  // namespace metrale::engine
