// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <gtest/gtest.h>

#include "sampling/sampling_support.h"

namespace metrale::sampling {
namespace {

SamplingParams reporting(std::uint32_t count) {
  SamplingParams params;
  params.logprobs = count;
  return params;
}

double log_sum_exp(const Logits& logits) {
  double sum = 0.0;
  for (const float logit : logits) sum += std::isfinite(logit) ? std::exp(static_cast<double>(logit)) : 0.0;
  return std::log(sum);
}

Tokens ids_of(std::span<const TokenLogprob> list) {
  Tokens ids;
  for (const TokenLogprob& entry : list) ids.push_back(entry.token);
  return ids;
}

TEST(Logprobs, AreNotComputedUnlessAskedFor) {
  Sampler sampler = sampler_for({}, {1, 2, 3});
  const SampleResult result = sample_once(sampler, {1, 2, 3});
  EXPECT_EQ(result.logprob.token, kNoToken);
  EXPECT_TRUE(result.top.empty());
}

TEST(Logprobs, DescribeTheRowAsGivenByDefault) {
  SamplingParams params = reporting(2);
  params.temperature = 0.3f;
  params.top_k = 2;
  params.logit_bias = {{0, 50.0f}};
  const Logits logits{1.0f, 2.0f, 3.0f, 0.5f};
  Sampler sampler = sampler_for(params, logits);

  const SampleResult result = sample_once(sampler, logits);

  EXPECT_EQ(result.token, 0u);
  EXPECT_EQ(result.logprob.token, 0u);
  EXPECT_NEAR(static_cast<double>(result.logprob.logprob), 1.0 - log_sum_exp(logits), 1e-6);
  EXPECT_EQ(result.logprob.rank, 3u);
  EXPECT_EQ(ids_of(result.top), (Tokens{2, 1}));
  EXPECT_NEAR(static_cast<double>(result.top[0].logprob), 3.0 - log_sum_exp(logits), 1e-6);
}

TEST(Logprobs, ProcessedOnesDescribeTheDistributionDrawnFrom) {
  SamplingParams params = reporting(4);
  params.logprob_mode = LogprobMode::kProcessed;
  params.temperature = 0.7f;
  params.top_k = 3;
  const Logits logits = random_logits(50, 8);
  Sampler sampler = sampler_for(params, logits);

  const SampleResult result = sample_once(sampler, logits);

  EXPECT_EQ(result.top.size(), 3u);
  for (const TokenLogprob& entry : result.top) {
    EXPECT_NEAR(static_cast<double>(entry.logprob), std::log(probabilities_of(sampler)[entry.token]), 1e-5);
  }
}

TEST(Logprobs, OfGreedyRequestsIgnoreTheTemperature) {
  for (const LogprobMode mode : {LogprobMode::kRaw, LogprobMode::kProcessed}) {
    SamplingParams params = reporting(0);
    params.temperature = 0.0f;
    params.logprob_mode = mode;
    Sampler sampler = sampler_for(params, {0.0f, 1.0f});
    const SampleResult result = sample_once(sampler, {0.0f, 1.0f});
    EXPECT_NEAR(static_cast<double>(result.logprob.logprob), -std::log1p(std::exp(-1.0)), 1e-6);
  }
}

TEST(Logprobs, RankIsOnePlusTheNumberOfLargerLogits) {
  SamplingParams params = reporting(5);
  params.logit_bias = {{3, 100.0f}};
  const Logits logits{2.0f, 5.0f, 5.0f, 2.0f, 1.0f};
  Sampler sampler = sampler_for(params, logits);

  const SampleResult result = sample_once(sampler, logits);

  EXPECT_EQ(result.token, 3u);
  EXPECT_EQ(result.logprob.rank, 3u);
  EXPECT_EQ(ids_of(result.top), (Tokens{1, 2, 0, 3, 4}));
  const std::uint32_t ranks[] = {1, 1, 3, 3, 5};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(result.top[i].rank, ranks[i]) << i;
}

TEST(Logprobs, TheChosenTokenIsListedOnceAndShiftsNobody) {
  const Logits logits = random_logits(20, 2, 0.1f);
  Sampler sampler = sampler_for(reporting(20), logits);
  for (std::uint64_t position = 0; position < 30; ++position) {
    const SampleResult result = sample_once(sampler, logits, position);
    const auto is_chosen = [&](const TokenLogprob& entry) { return entry.token == result.token; };
    ASSERT_EQ(std::ranges::count_if(result.top, is_chosen), 1);
    const TokenLogprob& listed = *std::ranges::find_if(result.top, is_chosen);
    EXPECT_EQ(listed.rank, result.logprob.rank);
    EXPECT_EQ(listed.logprob, result.logprob.logprob);
    EXPECT_EQ(&listed - result.top.data(), static_cast<std::ptrdiff_t>(listed.rank) - 1);
  }
}

TEST(Logprobs, AChosenTokenOutsideTheBestIsNotInTheList) {
  SamplingParams params = reporting(1);
  params.logit_bias = {{2, 100.0f}};
  Sampler sampler = sampler_for(params, {3, 2, 1});
  const SampleResult result = sample_once(sampler, {3, 2, 1});
  EXPECT_EQ(ids_of(result.top), (Tokens{0}));
  EXPECT_EQ(result.logprob.token, 2u);
  EXPECT_EQ(result.logprob.rank, 3u);
}

TEST(Logprobs, MoreThanTheVocabularyIsTheWholeVocabulary) {
  Sampler sampler = sampler_for(reporting(1'000'000), {3, 2, 1});
  EXPECT_EQ(ids_of(sample_once(sampler, {3, 2, 1}).top), (Tokens{0, 1, 2}));
}

TEST(Logprobs, BannedAndBrokenTokensAreNeverListed) {
  const Logits logits{kNan, 1.0f, -kInfinity, 2.0f, kInfinity};
  Sampler sampler = sampler_for(reporting(5), logits);
  const SampleResult result = sample_once(sampler, logits);
  EXPECT_EQ(ids_of(result.top), (Tokens{3, 1}));
  EXPECT_NEAR(static_cast<double>(result.top[0].logprob), -std::log1p(std::exp(-1.0)), 1e-6);
}

TEST(Logprobs, AreAlwaysFiniteNumbers) {
  const Logits logits{3e38f, -3e38f, 0.0f};
  SamplingParams params = reporting(3);
  params.logit_bias = {{0, -kInfinity}, {2, -kInfinity}};
  Sampler sampler = sampler_for(params, logits);
  const SampleResult result = sample_once(sampler, logits);
  EXPECT_EQ(result.token, 1u);
  EXPECT_EQ(result.logprob.logprob, kLogprobFloor);
  for (const TokenLogprob& entry : result.top) EXPECT_GE(entry.logprob, kLogprobFloor);
}

TEST(Logprobs, SumToOneOverALargeVocabulary) {
  const Logits logits = random_logits(100'000, 4);
  Sampler sampler = sampler_for(reporting(100'000), logits);
  double sum = 0.0;
  for (const TokenLogprob& entry : sample_once(sampler, logits).top) sum += std::exp(entry.logprob);
  EXPECT_NEAR(sum, 1.0, 1e-6);
}

}  // namespace
}  // namespace metrale::sampling
