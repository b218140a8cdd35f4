// SPDX-License-Identifier: Apache-2.0
// Ids and texts against the `tokenizers` package (scripts/golden/tokenizer_golden.py). Where the package
// takes no bytes that are not UTF-8, against the documented rule as that script spells it out.
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/engine/detokenizer.h>
#include <metrale/engine/tokenizer.h>

#include "engine/tokenizer/utf8.h"
#include "hard_strings.h"
#include "tiny_tokenizer.h"

namespace metrale::engine {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

constexpr EncodeOptions kUnframed{.add_special_tokens = false, .parse_special = true};
constexpr EncodeOptions kFramed{.add_special_tokens = true, .parse_special = true};
constexpr EncodeOptions kPlain{.add_special_tokens = false, .parse_special = false};

std::string repaired(std::string_view bytes) {
  std::string text;
  if (append_repaired_utf8(text, bytes) != 0) text += kReplacementCharacter;
  return text;
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

// Against NAME.golden.json: for each hard string [ids] or [ids, {what differs}].
void expect_cases(const Tokenizer& tokenizer, const json& golden) {
  const std::vector<std::string> texts = hard_strings();
  ASSERT_GE(texts.size(), 300U);
  ASSERT_EQ(golden["cases"].size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const json& each = golden["cases"][i];
    const json odd = each.size() > 1 ? each[1] : json::object();
    SCOPED_TRACE(fmt::format("string {}: {}", i, shown(texts[i])));
    const Ids ids = tokenizer.encode(texts[i], kUnframed);
    EXPECT_TRUE(is_packed(ids, each[0])) << testing::PrintToString(ids);
    EXPECT_TRUE(is_packed(tokenizer.encode(texts[i], kFramed), odd.value("framed", each[0])));
    EXPECT_TRUE(is_packed(tokenizer.encode(texts[i], kPlain), odd.value("plain", each[0])));
    const std::string decoded = tokenizer.decode(ids, false);
    if (odd.contains("decoded")) {
      EXPECT_TRUE(is_packed(decoded, odd["decoded"])) << shown(decoded);
    } else {
      EXPECT_EQ(decoded, repaired(texts[i]));
    }
    EXPECT_EQ(streamed(tokenizer, ids, false), decoded);
  }
}

void expect_decodes(const Tokenizer& tokenizer, const json& golden) {
  ASSERT_GE(golden["decodes"].size(), 60U);
  for (const json& each : golden["decodes"]) {
    const Ids ids = unpacked_ids(each[0].get<std::string>());
    SCOPED_TRACE(testing::PrintToString(ids));
    EXPECT_EQ(tokenizer.decode(ids, false), each[1].get<std::string>());
    EXPECT_EQ(tokenizer.decode(ids, true), each[2].get<std::string>());
    EXPECT_EQ(streamed(tokenizer, ids, false), each[1].get<std::string>());
    EXPECT_EQ(streamed(tokenizer, ids, true), each[2].get<std::string>());
  }
}

class GoldenTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, HardStringsGiveTheReferenceIdsAndText) {
  expect_cases(golden_tokenizer(GetParam()), golden_json(std::string(GetParam()) + ".golden.json"));
}

TEST_P(GoldenTokenizer, IdsGiveTheReferenceText) {
  expect_decodes(golden_tokenizer(GetParam()), golden_json(std::string(GetParam()) + ".golden.json"));
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, GoldenTokenizer,
                         testing::Values("gpt2", "llama3", "qwen2", "sentencepiece"),
                         [](const auto& file) { return std::string(file.param); });

class TokenizerVariant : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerVariant, HardStringsGiveTheReferenceDigests) {
  const json golden = golden_json(std::string(GetParam()) + ".golden.json");
  json document = golden_json(golden["base"].get<std::string>() + ".json");
  document.merge_patch(golden["patch"]);
  const Tokenizer tokenizer = tokenizer_of(document);
  const std::vector<std::string> texts = hard_strings();
  const auto digests = golden["digests"].get<std::string>();
  ASSERT_EQ(digests.size(), 16 * texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (digests.substr(16 * i, 16) == std::string(16, '0')) continue;
    Fnv digest;
    const Ids ids = tokenizer.encode(texts[i], kUnframed);
    const Ids framed = tokenizer.encode(texts[i], kFramed);
    const Ids plain = tokenizer.encode(texts[i], kPlain);
    for (const Ids& list : {ids, framed, plain}) {
      digest.add_integer(list.size(), 4);
      digest.add_ids(list);
    }
    digest.add(tokenizer.decode(ids, false));
    EXPECT_EQ(digest.hex(), digests.substr(16 * i, 16))
        << "string " << i << ": " << shown(texts[i]) << testing::PrintToString(ids)
        << shown(tokenizer.decode(ids, false));
    EXPECT_EQ(streamed(tokenizer, ids, false), tokenizer.decode(ids, false));
  }
}

INSTANTIATE_TEST_SUITE_P(Patches, TokenizerVariant,
                         testing::Values("digits", "o200k", "nfd", "metaspace_first", "metaspace_always",
                                         "metaspace_never", "gemma", "unknown_fused", "unknown_each",
                                         "lowercase"),
                         [](const auto& file) { return std::string(file.param); });

TEST(SmolLm2Tokenizer, HardStringsGiveTheReferenceIdsAndText) {
  const std::string path = std::string(METRALE_SMOLLM2_DIR) + "/tokenizer.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent; './dev demo' fetches the model";
  const Tokenizer tokenizer = Tokenizer::load(path);
  expect_cases(tokenizer, golden_json("smollm2.golden.json"));
  expect_decodes(tokenizer, golden_json("smollm2.golden.json"));
}

}  // namespace
}  // namespace metrale::engine
