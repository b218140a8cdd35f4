// SPDX-License-Identifier: Apache-2.0
#include "sampling/filters.h"

#include <numeric>

#include <gtest/gtest.h>

#include <metrale/base/error.h>

#include "sampling/sampling_support.h"

namespace metrale::sampling {
namespace {

Tokens all_of(std::uint32_t vocab_size) {
  Tokens tokens(vocab_size);
  std::iota(tokens.begin(), tokens.end(), 0u);
  return tokens;
}

SamplingParams with_top_k(std::int32_t k) {
  SamplingParams params;
  params.top_k = k;
  return params;
}

SamplingParams with_top_p(float p) {
  SamplingParams params;
  params.top_p = p;
  return params;
}

SamplingParams with_min_p(float p) {
  SamplingParams params;
  params.min_p = p;
  return params;
}

SamplingParams with_sigma(float n) {
  SamplingParams params;
  params.top_n_sigma = n;
  return params;
}

const Logits kExample{3.0f, 2.0f, 1.0f};  // probabilities 0.665, 0.245, 0.090

TEST(Temperature, FirstKeepsOneTokenWhereLastKeepsTwo) {
  SamplingParams params = with_top_p(0.8f);
  params.temperature = 0.5f;
  EXPECT_EQ(kept(params, kExample), (Tokens{0}));

  params.temperature_last = true;
  EXPECT_EQ(kept(params, kExample), (Tokens{0, 1}));
}

TEST(Temperature, LastStillTempersTheDraw) {
  SamplingParams params;
  params.temperature = 0.5f;
  params.temperature_last = true;
  params.top_k = 2;
  Sampler sampler = sampler_for(params, kExample);
  static_cast<void>(sample_once(sampler, kExample));
  EXPECT_NEAR(probabilities_of(sampler)[0], 1.0 / (1.0 + std::exp(-2.0)), 1e-7);
}

TEST(Temperature, ZeroTakesTheBestTokenWithoutDividing) {
  Sampler sampler = sampler_for(greedy_params(), {1.0f, 2.0f, -kInfinity});
  const SampleResult result = sample_once(sampler, {1.0f, 2.0f, -kInfinity});
  EXPECT_EQ(result.status, SampleStatus::kOk);
  EXPECT_EQ(result.token, 1u);
  EXPECT_EQ(result.entropy, 0.0f);
}

TEST(Temperature, BelowOneHundredThousandthIsGreedy) {
  SamplingParams params;
  params.temperature = 0.99e-5f;
  Sampler sampler = sampler_for(params, kExample);
  EXPECT_EQ(sample_once(sampler, {1.0f, 1.0f, 1.0f}).token, 0u);
  EXPECT_TRUE(sampler.last_weights().empty());
}

TEST(Temperature, AtOneHundredThousandthStillDraws) {
  SamplingParams params;
  params.temperature = 1e-5f;
  EXPECT_EQ(kept(params, {1.0f, 1.0f, 0.5f}), (Tokens{0, 1}));
}

TEST(Temperature, LargeLogitsDoNotOverflow) {
  EXPECT_EQ(kept({}, {3e38f, 3e38f, -3e38f}), (Tokens{0, 1}));
}

TEST(Temperature, HighTemperatureFlattensTheRow) {
  SamplingParams params;
  params.temperature = 1e30f;
  Sampler sampler = sampler_for(params, kExample);
  EXPECT_NEAR(static_cast<double>(sample_once(sampler, kExample).entropy), std::log(3.0), 1e-6);
}

TEST(TopK, KeepsTheLargestLogits) {
  EXPECT_EQ(kept(with_top_k(2), {1, 5, 3, 4, 2}), (Tokens{1, 3}));
}

TEST(TopK, TiesAtTheBorderGoToTheLowestIds) {
  EXPECT_EQ(kept(with_top_k(3), {1, 2, 1, 2, 1, 1}), (Tokens{0, 1, 3}));
}

TEST(TopK, NegativeAndPositiveZeroTie) {
  EXPECT_EQ(kept(with_top_k(1), {-0.0f, 0.0f}), (Tokens{0}));
  EXPECT_EQ(kept(with_top_k(1), {0.0f, -0.0f}), (Tokens{0}));
}

TEST(TopK, ZeroAndMinusOneAreOff) {
  EXPECT_EQ(kept(with_top_k(0), kExample), all_of(3));
  EXPECT_EQ(kept(with_top_k(-1), kExample), all_of(3));
}

TEST(TopK, AboveTheVocabularyIsTheWholeVocabulary) {
  EXPECT_EQ(kept(with_top_k(9'999'999), kExample), all_of(3));
  EXPECT_EQ(kept(with_top_k(std::numeric_limits<std::int32_t>::max()), kExample), all_of(3));
}

TEST(TopK, OfTheWholeVocabularyKeepsEverything) {
  EXPECT_EQ(kept(with_top_k(3), kExample), all_of(3));
}

TEST(TopK, CountsOnlyTokensThatAreLeft) {
  EXPECT_EQ(kept(with_top_k(3), {-kInfinity, 1, kNan, 2, -kInfinity}), (Tokens{1, 3}));
}

TEST(TopK, FindsTheBestInALongRowWhereverTheyLie) {
  for (const std::size_t offset : {0u, 4000u, 60000u, 99990u}) {
    Logits logits = random_logits(100'000, offset, 0.5f);
    Tokens expected;
    for (std::uint32_t i = 0; i < 10; ++i) {
      logits[offset + i] = 8.0f + 0.1f * static_cast<float>(i);
      expected.push_back(static_cast<std::uint32_t>(offset) + i);
    }
    EXPECT_EQ(kept(with_top_k(10), logits), expected);
  }
}

TEST(TopK, OfALongRowOfEqualLogitsKeepsTheLowestIds) {
  EXPECT_EQ(kept(with_top_k(40), Logits(100'000, 1.0f)), all_of(40));
}

TEST(TopK, IsFullEvenWhereTheFirstTokensAreBanned) {
  Logits logits(20'000, -kInfinity);
  for (std::size_t i = 19'000; i < logits.size(); ++i) logits[i] = 1.0f;
  EXPECT_EQ(kept(with_top_k(40), logits).size(), 40u);
}

TEST(TopP, KeepsTheSmallestPrefixThatReachesTheMass) {
  EXPECT_EQ(kept(with_top_p(0.6f), kExample), (Tokens{0}));
  EXPECT_EQ(kept(with_top_p(0.7f), kExample), (Tokens{0, 1}));
  EXPECT_EQ(kept(with_top_p(0.92f), kExample), all_of(3));
}

TEST(TopP, MassReachedExactlyIsEnough) {
  EXPECT_EQ(kept(with_top_p(0.5f), {1, 1, 1, 1}), (Tokens{0, 1}));
  EXPECT_EQ(kept(with_top_p(0.50001f), {1, 1, 1, 1}), (Tokens{0, 1, 2}));
}

TEST(TopP, TinyValuesKeepTheBestToken) {
  for (const float p : {1e-3f, 1e-7f, 1e-12f, 1e-38f}) EXPECT_EQ(kept(with_top_p(p), {1, 3, 2}), (Tokens{1}));
}

TEST(TopP, OneIsOff) {
  EXPECT_EQ(kept(with_top_p(1.0f), kExample), all_of(3));
}

TEST(TopP, IsTakenOverWhatTopKLeft) {
  SamplingParams params = with_top_p(0.72f);  // 0.665 of all, 0.731 of the best two
  params.top_k = 2;
  EXPECT_EQ(kept(params, kExample), (Tokens{0}));
}

TEST(TopP, TiesAtTheBorderGoToTheLowestIds) {
  EXPECT_EQ(kept(with_top_p(0.25f), Logits(100, 0.0f)), all_of(25));
}

TEST(TopP, SumsExactlyOverALargeVocabulary) {
  EXPECT_EQ(kept(with_top_p(0.25f), Logits(100'000, 0.0f)), all_of(25'000));
  EXPECT_EQ(kept(with_top_p(0.75f), Logits(100'000, 0.0f)), all_of(75'000));
}

TEST(TopP, CloseToOneKeepsAlmostEverythingOfALargeVocabulary) {
  const float below_one = std::nextafter(1.0f, 0.0f);
  EXPECT_EQ(kept(with_top_p(below_one), Logits(100'000, 0.0f)).size(), 100'000u);
}

TEST(MinP, KeepsTokensWithinTheFactorOfTheBest) {
  EXPECT_EQ(kept(with_min_p(0.3f), kExample), (Tokens{0, 1}));  // ratios 1, 0.368, 0.135
  EXPECT_EQ(kept(with_min_p(0.4f), kExample), (Tokens{0}));
}

TEST(MinP, OfOneKeepsTheTiedBest) {
  EXPECT_EQ(kept(with_min_p(1.0f), {2, 3, 3, 1}), (Tokens{1, 2}));
}

TEST(MinP, DoesNotChangeWithAConstantShift) {
  EXPECT_EQ(kept(with_min_p(0.3f), {103, 102, 101}), (Tokens{0, 1}));
}

TEST(MinP, IsMeasuredAfterTemperature) {
  SamplingParams params = with_min_p(0.3f);
  params.temperature = 2.0f;
  EXPECT_EQ(kept(params, kExample), all_of(3));  // ratios 1, 0.607, 0.368
}

TEST(TopNSigma, IsMeasuredFromTheBestLogitAndNotFromTheMean) {
  // Standard deviation 4.05: the rule of the paper keeps 10 and 8, mean minus sigma would keep all but the
  // last.
  EXPECT_EQ(kept(with_sigma(1.0f), {10, 8, 3, 1, 0, -1}), (Tokens{0, 1}));
}

TEST(TopNSigma, KeepsTheLogitOnTheThreshold) {
  EXPECT_EQ(kept(with_sigma(2.0f), {1, -1}), (Tokens{0, 1}));  // sigma 1
  EXPECT_EQ(kept(with_sigma(1.999f), {1, -1}), (Tokens{0}));
}

TEST(TopNSigma, LeavesBannedTokensOutOfTheDeviation) {
  EXPECT_EQ(kept(with_sigma(2.0f), {1, -kInfinity, -1, kNan}), (Tokens{0, 2}));
}

TEST(TopNSigma, KeepsEveryTokenOfAFlatRow) {
  EXPECT_EQ(kept(with_sigma(0.1f), {2, 2, 2}), all_of(3));
}

TEST(TopNSigma, DoesNotChangeWithTemperature) {
  SamplingParams hot = with_sigma(1.0f);
  hot.temperature = 10.0f;
  const Logits logits = random_logits(500, 9);
  EXPECT_EQ(kept(hot, logits), kept(with_sigma(1.0f), logits));
}

TEST(TopNSigma, ComesBeforeTopP) {
  SamplingParams params = with_sigma(1.0f);
  params.top_p = 0.5f;
  Logits logits(1002, 6.0f);  // sigma 0.18: only the first two are near enough to the best
  logits[0] = 10.0f;          // 0.525 of the two, 0.05 of all
  logits[1] = 9.9f;
  EXPECT_EQ(kept(params, logits), (Tokens{0}));
}

TEST(TopNSigma, AFiniteStandInForABanDoesNotDrownTheRow) {
  EXPECT_EQ(kept(with_sigma(1e-3f), {4, 3.5f, -3e38f, -3e38f}), (Tokens{0, 1}));
}

TEST(Filters, KeepEverythingOfARowOfEqualLogits) {
  SamplingParams params;
  params.min_p = 1.0f;
  params.top_n_sigma = 0.5f;
  params.temperature = 0.3f;
  EXPECT_EQ(kept(params, Logits(77, -4.0f)), all_of(77));
}

TEST(Filters, AVocabularyOfOneAlwaysGivesItsToken) {
  SamplingParams params;
  params.top_k = 1;
  params.top_p = 0.1f;
  params.min_p = 1.0f;
  params.top_n_sigma = 1.0f;
  EXPECT_EQ(kept(params, {-7.0f}), (Tokens{0}));
  EXPECT_EQ(kept({}, {-7.0f}), (Tokens{0}));
}

TEST(Filters, TogetherNeverDropTheBestToken) {
  SamplingParams params;
  params.top_k = 1;
  params.top_p = 1e-9f;
  params.min_p = 1.0f;
  params.top_n_sigma = 1e-9f;
  EXPECT_EQ(kept(params, {1, 9, 9, 2}), (Tokens{1}));
}

TEST(AllowedMask, OnlyAllowedTokensCanBeDrawn) {
  EXPECT_EQ(kept({}, Logits(70, 1.0f), mask_of(70, {3, 31, 32, 69})), (Tokens{3, 31, 32, 69}));
}

TEST(AllowedMask, GovernsGreedyRequestsToo) {
  const Logits logits{5, 4, 3};
  Sampler sampler = sampler_for(greedy_params(), logits);
  EXPECT_EQ(sampler.sample(logits, {}, 0, mask_of(3, {1, 2})).token, 1u);
}

TEST(AllowedMask, GovernsTheAdaptiveShortcutToo) {
  SamplingParams params;
  params.adaptive_threshold = 0.9f;
  const Logits logits{50, 40, 3};
  Sampler sampler = sampler_for(params, logits);
  const SampleResult result = sampler.sample(logits, {}, 0, mask_of(3, {1, 2}));
  EXPECT_EQ(result.token, 1u);
  EXPECT_TRUE(result.took_greedy_shortcut);
}

TEST(AllowedMask, CannotBeUndoneByABias) {
  SamplingParams params;
  params.logit_bias = {{0, 1000.0f}};
  EXPECT_EQ(kept(params, {1, 2, 3}, mask_of(3, {1, 2})), (Tokens{1, 2}));
}

TEST(AllowedMask, BitsBeyondTheVocabularyAreIgnored) {
  EXPECT_EQ(kept({}, Logits(33, 1.0f), {0, 0xFFFFFFFF}), (Tokens{32}));
}

TEST(AllowedMask, ThatAllowsNothingIsReportedAndNotToken0) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.logprobs = 3;
    const Logits logits{5, 4, 3};
    Sampler sampler = sampler_for(params, logits);
    const SampleResult result = sampler.sample(logits, {}, 0, mask_of(3, {}));
    EXPECT_EQ(result.status, SampleStatus::kNoCandidate);
    EXPECT_EQ(result.token, kNoToken);
    EXPECT_TRUE(sampler.last_weights().empty());
    EXPECT_TRUE(result.top.empty());
  }
}

TEST(AllowedMask, OfTheWrongSizeIsRefused) {
  const Logits logits(33, 1.0f);
  Sampler sampler = sampler_for({}, logits);
  EXPECT_THROW(static_cast<void>(sampler.sample(logits, {}, 0, Tokens{1})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sampler.sample(logits, {}, 0, Tokens{1, 1, 1})), InvalidArgument);
}

TEST(Sampler, ARowOfTheWrongSizeIsRefused) {
  Sampler sampler({}, 4);
  EXPECT_THROW(static_cast<void>(sampler.sample(Logits(3, 0.0f), {}, 0)), InvalidArgument);
}

TEST(NonFiniteLogits, AreExcludedAndCounted) {
  const Logits logits{kNan, 1.0f, kInfinity, -kInfinity, 2.0f, -kNan, -kInfinity};
  Sampler sampler = sampler_for({}, logits);
  const SampleResult result = sample_once(sampler, logits);
  EXPECT_EQ(drawable_tokens(sampler), (Tokens{1, 4}));
  EXPECT_EQ(result.non_finite, 5u);
  EXPECT_EQ(result.broken, 3u);
}

TEST(NonFiniteLogits, ARowWithNothingElseIsReported) {
  for (const float value : {kNan, kInfinity, -kInfinity}) {
    for (const float temperature : {0.0f, 0.8f}) {
      SamplingParams params;
      params.temperature = temperature;
      params.top_p = 0.5f;
      params.top_k = 2;
      params.top_n_sigma = 1.0f;
      const Logits logits(40, value);
      Sampler sampler = sampler_for(params, logits);
      const SampleResult result = sample_once(sampler, logits);
      EXPECT_EQ(result.status, SampleStatus::kNoCandidate);
      EXPECT_EQ(result.token, kNoToken);
      EXPECT_EQ(result.non_finite, 40u);
    }
  }
}

TEST(NonFiniteLogits, ABrokenRowDoesNotHarmTheNextOne) {
  Sampler sampler = sampler_for(with_top_k(2), kExample);
  EXPECT_EQ(sample_once(sampler, Logits(3, kNan)).status, SampleStatus::kNoCandidate);
  EXPECT_EQ(sample_once(sampler, kExample).status, SampleStatus::kOk);
  EXPECT_EQ(drawable_tokens(sampler), (Tokens{0, 1}));
}

TEST(Adaptive, TakesTheBestTokenWhenItIsProbableEnough) {
  SamplingParams params;
  params.adaptive_threshold = 0.66f;
  Sampler sampler = sampler_for(params, kExample);
  const SampleResult result = sample_once(sampler, kExample);
  EXPECT_TRUE(result.took_greedy_shortcut);
  EXPECT_EQ(result.token, 0u);
  EXPECT_EQ(result.entropy, 0.0f);
  EXPECT_TRUE(sampler.last_weights().empty());
}

TEST(Adaptive, DrawsAsUsualBelowTheThreshold) {
  SamplingParams params;
  params.adaptive_threshold = 0.67f;
  params.seed = 3;
  SamplingParams plain;
  plain.seed = 3;
  Sampler adaptive = sampler_for(params, kExample);
  Sampler usual = sampler_for(plain, kExample);
  for (std::uint64_t position = 0; position < 100; ++position) {
    const SampleResult result = sample_once(adaptive, kExample, position);
    EXPECT_FALSE(result.took_greedy_shortcut);
    EXPECT_EQ(result.token, sample_once(usual, kExample, position).token);
  }
}

TEST(Adaptive, SeesTheRowAfterTemperatureAndBeforeTheOtherFilters) {
  SamplingParams params;
  params.adaptive_threshold = 0.7f;
  params.top_k = 1;
  Sampler sampler = sampler_for(params, kExample);
  EXPECT_FALSE(sample_once(sampler, kExample).took_greedy_shortcut);

  params.temperature = 0.5f;  // 0.867
  Sampler colder = sampler_for(params, kExample);
  EXPECT_TRUE(sample_once(colder, kExample).took_greedy_shortcut);
}

TEST(Adaptive, IsOffByDefault) {
  Sampler sampler = sampler_for({}, {100, 0, 0});
  EXPECT_FALSE(sample_once(sampler, {100, 0, 0}).took_greedy_shortcut);
}

TEST(Entropy, IsThatOfTheDistributionDrawnFrom) {
  Sampler flat = sampler_for(with_top_k(8), Logits(20, 1.0f));
  EXPECT_NEAR(static_cast<double>(sample_once(flat, Logits(20, 1.0f)).entropy), std::log(8.0), 1e-6);

  Sampler example = sampler_for({}, kExample);
  const double entropy = static_cast<double>(sample_once(example, kExample).entropy);
  double expected = 0.0;
  for (const double p : probabilities_of(example)) expected -= p * std::log(p);
  EXPECT_NEAR(entropy, expected, 1e-6);
}

TEST(TokenAt, GivesEachTokenItsShareInIdOrderAndSkipsEmptyOnes) {
  const std::vector<std::uint64_t> weights{0, 2, 0, 3, 0};
  const Tokens expected{1, 1, 3, 3, 3};
  for (std::uint64_t target = 0; target < 5; ++target) EXPECT_EQ(token_at(target, weights), expected[target]);
}

}  // namespace
}  // namespace metrale::sampling
