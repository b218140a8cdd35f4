// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/base/hash.h>

#include "support/golden.h"
#include "support/logit_rows.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace metrale::test {
namespace {

std::string digest(std::span<const std::byte> bytes) {
  return hex64(hash64(bytes));
}
std::string digest(const std::string& text) {
  return digest(std::as_bytes(std::span(text)));
}

class TinyModelTest : public testing::TestWithParam<std::string> {
 protected:
  const TinyModel model_ = tiny_model(GetParam());
  const GoldenFile golden_{"engine/" + GetParam()};
};

TEST_P(TinyModelTest, WeightsAreTheBytesThatTheReferenceUsed) {
  std::vector<std::byte> all;
  for (const TinyTensor& tensor : tiny_tensors(model_)) {
    const auto name = std::as_bytes(std::span(tensor.name));
    all.insert(all.end(), name.begin(), name.end());
    all.insert(all.end(), tensor.bytes.begin(), tensor.bytes.end());
  }

  EXPECT_EQ(golden_.facts().at("xxh3_64").at("tensors"), digest(all));
}

TEST_P(TinyModelTest, ConfigAndTokenizerAreTheTextsThatTheReferenceUsed) {
  const nlohmann::json& expected = golden_.facts().at("xxh3_64");

  EXPECT_EQ(expected.at("config.json"), digest(tiny_config_json(model_))) << tiny_config_json(model_);
  EXPECT_EQ(expected.at("tokenizer.json"), digest(tiny_tokenizer_json(model_)));
}

TEST_P(TinyModelTest, DirectoryHoldsTheTextsAndEveryTensor) {
  const TempDir dir;
  const std::string path = dir.file("models/tiny");

  write_tiny_model(model_, path);

  EXPECT_EQ(read_text_file(path + "/config.json", 1U << 20), tiny_config_json(model_));
  EXPECT_EQ(read_text_file(path + "/tokenizer.json", 1U << 20), tiny_tokenizer_json(model_));
  const std::string file = read_text_file(path + "/model.safetensors", 16U << 20);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  ASSERT_EQ(header_bytes % 8, 0U);
  const auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  std::size_t end = 0;
  for (const TinyTensor& tensor : tiny_tensors(model_)) {
    const auto span = header.at(tensor.name).at("data_offsets").get<std::vector<std::size_t>>();
    EXPECT_EQ(span.at(0), end) << tensor.name;
    EXPECT_EQ(digest(file.substr(8 + header_bytes + span.at(0), span.at(1) - span.at(0))),
              digest(tensor.bytes));
    end = span.at(1);
  }
  EXPECT_EQ(8 + header_bytes + end, file.size());
}

TEST_P(TinyModelTest, GreedyReferenceTakesUpWhereTheLogitsEnd) {
  const GoldenArray<float> logits = golden_.array<float>("logits");
  const GoldenArray<std::uint32_t> greedy = golden_.array<std::uint32_t>("greedy_tokens");

  for (std::size_t prompt = 0; prompt < logits.shape[0]; ++prompt) {
    EXPECT_EQ(top_id(logits.at(prompt, logits.shape[1] - 1)), greedy.at(prompt)[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, TinyModelTest, testing::ValuesIn(tiny_model_names()),
                         [](const auto& variant) { return variant.param; });

TEST(TinyModel, UnknownNameIsRefused) {
  EXPECT_THROW((void)tiny_model("tiny_moe"), InvalidArgument);
}

TEST(TinyModel, VocabularyOutsideOfTheTokenizersReachIsRefused) {
  TinyModel model = tiny_model("tiny_base");

  model.config["vocab_size"] = 259;
  EXPECT_THROW((void)tiny_tokenizer_json(model), InvalidArgument);

  model.config["vocab_size"] = 2159;
  EXPECT_THROW((void)tiny_tokenizer_json(model), InvalidArgument);
}

TEST(GoldenFile, AbsentArrayAndWrongTypeAreNamed) {
  const GoldenFile golden("engine/tiny_base");

  EXPECT_THROW((void)golden.array<float>("nothing"), FormatError);
  EXPECT_THROW((void)golden.array<std::uint16_t>("logits"), FormatError);
}

TEST(GoldenFile, AbsentFileIsAnIoError) {
  EXPECT_THROW(GoldenFile("engine/absent"), IoError);
}

TEST(GoldenFile, SlicesFollowTheShape) {
  const GoldenArray<float> logits = GoldenFile("engine/tiny_base").array<float>("logits");

  EXPECT_THAT(logits.shape, testing::ElementsAre(2, 24, 512));
  EXPECT_EQ(logits.at(1).size(), 24U * 512U);
  EXPECT_EQ(logits.at(1, 2).data(), logits.values.data() + (24 + 2) * 512);
  EXPECT_THROW((void)logits.at(2), InvalidArgument);
}

TEST(GoldenFile, RealModelHasEightPromptsOf128Tokens) {
  const GoldenFile golden("engine/smollm2_fp32");
  const auto ids = golden.array<std::uint16_t>("top_ids");
  const auto logits = golden.array<float>("top_logits");
  const auto margins = golden.array<float>("margins");

  EXPECT_THAT(golden.array<std::uint32_t>("tokens").shape, testing::ElementsAre(8, 128));
  EXPECT_THAT(ids.shape, testing::ElementsAre(8, 128, 64));
  EXPECT_THAT(golden.array<std::uint32_t>("greedy_tokens").shape, testing::ElementsAre(8, 64));
  for (std::size_t row = 0; row < margins.values.size(); ++row) {
    const std::span<const float> top = std::span(logits.values).subspan(row * 64, 64);
    EXPECT_TRUE(std::is_sorted(top.begin(), top.end(), std::greater<>()));
    EXPECT_FLOAT_EQ(top[0] - top[1], margins.values[row]);
  }
}

TEST(LogitRows, MixIsSplitmix64) {
  EXPECT_EQ(mix64(0), 0xE220A8397B1DCDAFU);
  EXPECT_EQ(mix64(0x9E3779B97F4A7C15U), 0x6E789E6AA1B965F4U);
}

struct KeptRow {
  std::vector<std::uint16_t> ids;
  std::vector<float> logits;
  StoredRow view;
};

KeptRow keep(std::span<const float> row, std::size_t count, float total, float rest) {
  KeptRow kept;
  kept.ids.resize(row.size());
  std::iota(kept.ids.begin(), kept.ids.end(), std::uint16_t{0});
  std::ranges::stable_sort(kept.ids, [&](auto a, auto b) { return row[a] > row[b]; });
  kept.ids.resize(count);
  for (const std::uint16_t id : kept.ids) kept.logits.push_back(row[id]);
  kept.view = {kept.ids, kept.logits, total, rest};
  return kept;
}

TEST(LogitRows, FiguresAgreeWithTheGenerator) {
  const GoldenFile golden("engine/tiny_base");
  const auto logits = golden.array<float>("logits");
  const auto totals = golden.array<float>("log_sum_exp");
  const auto rests = golden.array<float>("rest_log_sum_exp");
  const auto projections = golden.array<float>("projections");
  const auto divergences = golden.array<float>("next_row_bucket_kl");

  for (std::size_t prompt = 0; prompt < logits.shape[0]; ++prompt) {
    for (std::size_t token = 0; token + 1 < logits.shape[1]; ++token) {
      const std::span<const float> row = logits.at(prompt, token);
      const float total = totals.at(prompt, token)[0];
      EXPECT_NEAR(log_sum_exp(row), total, 1e-5);
      for (std::uint32_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(project(row, i), projections.at(prompt, token, i)[0], 1e-5);
      }
      const KeptRow kept = keep(row, 64, total, rests.at(prompt, token)[0]);
      const float expected = divergences.at(prompt, token)[0];
      EXPECT_NEAR(bucket_kl(kept.view, logits.at(prompt, token + 1)), expected, 1e-5 * (1 + expected));
      EXPECT_NEAR(bucket_kl(kept.view, row), 0, 1e-5);
    }
  }
}

TEST(LogitRows, LargestDifferenceLooksAtTheStoredIdsOnly) {
  const std::vector<float> row = {1, 5, 3, 2};
  const KeptRow kept = keep(row, 2, 0, 0);

  const std::vector<float> other = {9, 5, 2.5F, 2};

  EXPECT_EQ(max_top_difference(kept.view, other), 0.5);
  EXPECT_EQ(top_id(row), 1U);
}

}  // namespace
}  // namespace metrale::test
