// SPDX-License-Identifier: Apache-2.0
// Against Hugging Face transformers: logits at every position and greedy texts, from golden files.
#include <cmath>
#include <filesystem>
#include <string>
#include <support/golden.h>
#include <support/logit_rows.h>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gtest/gtest.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

constexpr float kMaxLogitError = 1e-3F;

Tokens to_tokens(std::span<const std::uint32_t> values) {
  return {values.begin(), values.end()};
}

engine::EngineOptions fp32_options(std::uint32_t max_seq_len, std::uint32_t batch) {
  engine::EngineOptions options;
  options.max_seq_len = max_seq_len;
  options.max_batch_size = batch;
  options.max_batch_tokens = 256;
  options.kv_dtype = {quant::KvFormat::kFp32, quant::KvFormat::kFp32};
  options.compute = quant::ElementType::kF32;
  return options;
}

std::vector<Tokens> prompts_of(const GoldenFile& golden) {
  const auto tokens = golden.array<std::uint32_t>("tokens");
  std::vector<Tokens> prompts;
  for (std::size_t p = 0; p < tokens.shape[0]; ++p) prompts.push_back(to_tokens(tokens.at(p)));
  return prompts;
}

void expect_greedy(EngineHarness& harness, const GoldenFile& golden, std::size_t prompt_tokens) {
  const auto expected = golden.array<std::uint32_t>("greedy_tokens");
  std::vector<engine::Request> requests;
  for (Tokens prompt : prompts_of(golden)) {
    prompt.resize(prompt_tokens);
    engine::Request request{.prompt = std::move(prompt),
                            .sampling = {},
                            .max_new_tokens = static_cast<std::uint32_t>(expected.shape[1]),
                            .stop_ids = {},
                            .ignore_eos = true};
    request.sampling.temperature = 0;
    requests.push_back(std::move(request));
  }
  const auto outputs = harness.generate(std::move(requests));
  for (std::size_t p = 0; p < outputs.size(); ++p) {
    EXPECT_EQ(outputs[p], to_tokens(expected.at(p))) << "prompt " << p;
  }
}

class TinyGolden : public testing::TestWithParam<std::string> {};

TEST_P(TinyGolden, LogitsAtEveryPositionAgree) {
  const TempDir dir;
  write_tiny_model(tiny_model(GetParam()), dir.path());
  const GoldenFile golden("engine/" + GetParam());
  const auto expected = golden.array<float>("logits");
  EngineHarness harness(dir.path(), fp32_options(128, 4));

  const auto logits = harness.logits(prompts_of(golden), 10);

  for (std::size_t p = 0; p < logits.size(); ++p) {
    const auto reference = expected.at(p);
    ASSERT_EQ(logits[p].size(), reference.size());
    float worst = 0;
    for (std::size_t i = 0; i < reference.size(); ++i)
      worst = std::max(worst, std::abs(logits[p][i] - reference[i]));
    EXPECT_LT(worst, kMaxLogitError) << "prompt " << p;
  }
}

TEST_P(TinyGolden, FastLogitsAgreeToo) {
  const TempDir dir;
  write_tiny_model(tiny_model(GetParam()), dir.path());
  const GoldenFile golden("engine/" + GetParam());
  const auto expected = golden.array<float>("logits");
  engine::EngineOptions options = fp32_options(128, 4);
  options.fast = true;
  EngineHarness harness(dir.path(), options);

  const auto logits = harness.logits(prompts_of(golden), 24);

  for (std::size_t p = 0; p < logits.size(); ++p) {
    for (std::size_t i = 0; i < logits[p].size(); ++i) {
      ASSERT_NEAR(logits[p][i], expected.at(p)[i], kMaxLogitError) << "prompt " << p << ", logit " << i;
    }
  }
}

TEST_P(TinyGolden, GreedyTextsAgree) {
  const TempDir dir;
  write_tiny_model(tiny_model(GetParam()), dir.path());
  const GoldenFile golden("engine/" + GetParam());
  EngineHarness harness(dir.path(), fp32_options(128, 2));
  expect_greedy(harness, golden, golden.array<std::uint32_t>("tokens").shape[1]);
}

INSTANTIATE_TEST_SUITE_P(Models, TinyGolden, testing::ValuesIn(tiny_model_names()),
                         [](const auto& c) { return c.param; });

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(directory + "/model.safetensors")) {
      GTEST_SKIP() << "the demo model is not there: scripts/get_demo_model.sh fetches it";
    }
  }
  std::string directory = demo_model_directory();
};

TEST_F(SmolLm2, Fp32LogitsAtEveryPositionAgree) {
  const GoldenFile golden("engine/smollm2_fp32");
  const auto ids = golden.array<std::uint16_t>("top_ids");
  const auto top = golden.array<float>("top_logits");
  const auto sums = golden.array<float>("log_sum_exp");
  const auto projections = golden.array<float>("projections");
  EngineHarness harness(directory, fp32_options(128, 8));
  const std::size_t vocab = harness.engine().config().vocab_size;

  const auto logits = harness.logits(prompts_of(golden), 20);

  for (std::size_t p = 0; p < logits.size(); ++p) {
    for (std::size_t t = 0; t < ids.shape[1]; ++t) {
      const std::span<const float> row = std::span(logits[p]).subspan(t * vocab, vocab);
      const StoredRow reference{.top_ids = ids.at(p, t), .top_logits = top.at(p, t)};
      ASSERT_LT(max_top_difference(reference, row), kMaxLogitError) << "prompt " << p << ", position " << t;
      ASSERT_NEAR(log_sum_exp(row), sums.at(p, t)[0], kMaxLogitError) << "prompt " << p << ", position " << t;
      for (std::uint32_t k = 0; k < projections.shape[2]; ++k) {
        ASSERT_NEAR(project(row, k), projections.at(p, t)[k], kMaxLogitError)
            << "prompt " << p << ", position " << t;
      }
    }
  }
}

TEST_F(SmolLm2, Fp32GreedyTextsAgree) {
  const GoldenFile golden("engine/smollm2_fp32");
  EngineHarness harness(directory, fp32_options(128, 8));
  expect_greedy(harness, golden, golden.facts().at("greedy_prompt_tokens").get<std::size_t>());
}

TEST_F(SmolLm2, Bf16IsAsCloseToFp32AsTheReferenceIs) {
  const GoldenFile golden("engine/smollm2_fp32");
  const GoldenFile bf16("engine/smollm2_bf16");
  const auto ids = golden.array<std::uint16_t>("top_ids");
  const auto top = golden.array<float>("top_logits");
  const auto sums = golden.array<float>("log_sum_exp");
  const auto rests = golden.array<float>("rest_log_sum_exp");
  engine::EngineOptions options = fp32_options(128, 8);
  options.compute = quant::ElementType::kBf16;
  options.kv_dtype = {};
  EngineHarness harness(directory, options);
  const std::size_t vocab = harness.engine().config().vocab_size;

  const auto logits = harness.logits(prompts_of(golden), 64);

  double kl = 0;
  double same = 0;
  double rows = 0;
  for (std::size_t p = 0; p < logits.size(); ++p) {
    for (std::size_t t = 0; t < ids.shape[1]; ++t) {
      const std::span<const float> row = std::span(logits[p]).subspan(t * vocab, vocab);
      kl += bucket_kl({ids.at(p, t), top.at(p, t), sums.at(p, t)[0], rests.at(p, t)[0]}, row);
      same += top_id(row) == ids.at(p, t)[0] ? 1 : 0;
      rows += 1;
    }
  }
  // The better of the reference's two attention kernels.
  const auto& sdpa = bf16.facts().at("bf16_sdpa");
  const auto& eager = bf16.facts().at("bf16_eager");
  const double reference_kl =
      std::min(sdpa.at("mean_bucket_kl").get<double>(), eager.at("mean_bucket_kl").get<double>());
  const double reference_same =
      std::max(sdpa.at("same_top").get<double>(), eager.at("same_top").get<double>());
  RecordProperty("mean_kl", std::to_string(kl / rows));
  RecordProperty("same_top", std::to_string(same / rows));
  EXPECT_LE(kl / rows, 1.1 * reference_kl);
  EXPECT_GE(same / rows, reference_same - 0.005);
}

}  // namespace
}  // namespace metrale::test
