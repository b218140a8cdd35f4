// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <gtest/gtest.h>

#include "sampling/sampling_support.h"

namespace metrale::sampling {
namespace {

void expect_logits(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], 1e-4) << "token " << i;
}

SamplingParams with_repetition(float penalty) {
  SamplingParams params;
  params.repetition_penalty = penalty;
  return params;
}

TEST(LogitBias, IsAddedAndRepeatedTokensAddUp) {
  SamplingParams params;
  params.logit_bias = {{1, 0.5f}, {0, -1.0f}, {1, 0.25f}};
  expect_logits(edited_logits(params, {1.0f, 1.0f, 1.0f}, {}, {}), {0.0, 1.75, 1.0});
}

TEST(LogitBias, MinusInfinityBansTheTokenForGoodEvenInAGreedyRequest) {
  SamplingParams params = greedy_params();
  params.logit_bias = {{1, -kInfinity}, {1, 100.0f}};
  const Logits logits{1.0f, 9.0f, 2.0f};
  Sampler sampler = sampler_for(params, logits);
  EXPECT_EQ(sample_once(sampler, logits).token, 2u);
}

TEST(LogitBias, MinusOneHundredIsALargeBiasAndNotABan) {
  SamplingParams params = greedy_params();
  params.logit_bias = {{0, -100.0f}};
  const Logits logits{1.0f};
  Sampler sampler = sampler_for(params, logits);
  EXPECT_EQ(sample_once(sampler, logits).token, 0u);
}

TEST(LogitBias, ComesBeforeTheRepetitionPenalty) {
  SamplingParams params = with_repetition(2.0f);
  params.logit_bias = {{0, -3.0f}};
  expect_logits(edited_logits(params, {1.0f, 0.0f}, {0}, {}), {-4.0, 0.0});
}

TEST(RepetitionPenalty, MakesNegativeLogitsLessLikelyToo) {
  expect_logits(edited_logits(with_repetition(2.0f), {3.0f, -3.0f, 0.0f, 1.0f}, {0, 1, 2}, {}),
                {1.5, -6.0, 0.0, 1.0});
}

TEST(RepetitionPenalty, CountsPromptAndOutput) {
  expect_logits(edited_logits(with_repetition(2.0f), {2.0f, 2.0f, 2.0f}, {0}, {1}), {1.0, 1.0, 2.0});
}

TEST(RepetitionPenalty, DependsOnPresenceAndNotOnTheCount) {
  expect_logits(edited_logits(with_repetition(2.0f), {2.0f, 2.0f}, {0, 0, 0}, {0, 0}), {1.0, 2.0});
}

TEST(RepetitionPenalty, BelowOneFavoursSeenTokens) {
  expect_logits(edited_logits(with_repetition(0.5f), {2.0f, -2.0f, 2.0f}, {0, 1}, {}), {4.0, -1.0, 2.0});
}

TEST(FrequencyAndPresence, CountTheOutputOnly) {
  SamplingParams params;
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 0.25f;
  expect_logits(edited_logits(params, {2.0f, 2.0f, 2.0f}, {0, 0, 0}, {1}), {2.0, 1.25, 2.0});
}

TEST(FrequencyAndPresence, AreNotMixedUp) {
  SamplingParams frequency;
  frequency.frequency_penalty = 0.5f;
  SamplingParams presence;
  presence.presence_penalty = 0.5f;
  expect_logits(edited_logits(frequency, {2.0f, 2.0f, 2.0f}, {}, {0, 0, 0, 1}), {0.5, 1.5, 2.0});
  expect_logits(edited_logits(presence, {2.0f, 2.0f, 2.0f}, {}, {0, 0, 0, 1}), {1.5, 1.5, 2.0});
}

TEST(FrequencyAndPresence, FollowTheRepetitionPenalty) {
  SamplingParams params = with_repetition(2.0f);
  params.frequency_penalty = 0.25f;
  params.presence_penalty = 0.5f;
  expect_logits(edited_logits(params, {2.0f, 2.0f}, {}, {0}), {0.25, 2.0});
}

TEST(PenaltyWindow, ZeroAndMinusOneMeanTheWholeHistory) {
  for (const std::int32_t window : {0, -1}) {
    SamplingParams params = with_repetition(2.0f);
    params.penalty_window = window;
    expect_logits(edited_logits(params, {2.0f, 2.0f, 2.0f}, {0}, {1}), {1.0, 1.0, 2.0});
  }
}

TEST(PenaltyWindow, HoldsTheLastTokensAndNotTheFirst) {
  SamplingParams params = with_repetition(2.0f);
  params.penalty_window = 2;
  expect_logits(edited_logits(params, {2.0f, 2.0f, 2.0f, 2.0f}, {0, 1}, {2}), {2.0, 1.0, 1.0, 2.0});
}

TEST(PenaltyWindow, CutsTheOutputForFrequencyToo) {
  SamplingParams params;
  params.frequency_penalty = 0.5f;
  params.penalty_window = 2;
  expect_logits(edited_logits(params, {2.0f, 2.0f, 2.0f}, {1}, {0, 0, 0, 1}), {1.5, 1.5, 2.0});
}

TEST(PenaltyWindow, LongerThanTheHistoryHoldsAllOfIt) {
  SamplingParams params = with_repetition(2.0f);
  params.penalty_window = 1000;
  expect_logits(edited_logits(params, {2.0f, 2.0f, 2.0f}, {0}, {1}), {1.0, 1.0, 2.0});
}

SamplingParams with_every_penalty() {
  SamplingParams params = with_repetition(1.5f);
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 0.5f;
  params.dry_multiplier = 1.0f;
  params.lz_penalty = 0.5f;
  return params;
}

TEST(Penalties, IdsOutsideTheVocabularyAreIgnored) {
  const Tokens placeholders{128256, 128256, 0xFFFFFFFF, 128256, 128256, 0xFFFFFFFF, 128256, 128256};
  expect_logits(edited_logits(with_every_penalty(), {2.0f, 1.0f}, placeholders, placeholders), {2.0, 1.0});
}

TEST(Penalties, AnEmptyHistoryChangesNothing) {
  expect_logits(edited_logits(with_every_penalty(), {2.0f, -1.0f}, {}, {}), {2.0, -1.0});
}

TEST(Penalties, ABannedTokenStaysBanned) {
  const Logits logits{-kInfinity, 1.0f, -kInfinity, 0.0f};
  for (const float repetition : {0.001f, 1000.0f}) {
    SamplingParams params = with_every_penalty();
    params.repetition_penalty = repetition;
    params.logit_bias = {{0, 50.0f}};
    Sampler sampler = sampler_for(params, logits);
    const Tokens history{0, 1, 2, 0, 1, 2, 0, 1};
    const SampleResult result = sampler.sample(logits, {history, history}, 0);
    EXPECT_EQ(sampler.last_weights()[0], 0u);
    EXPECT_EQ(sampler.last_weights()[2], 0u);
    EXPECT_EQ(result.non_finite, 2u);
  }
}

TEST(Penalties, AnEditThatOverflowsNeitherBansNorBreaksTheToken) {
  SamplingParams params = greedy_params();
  params.repetition_penalty = 1e38f;
  const Logits negative{-5.0f};
  Sampler pushed_down = sampler_for(params, negative);
  EXPECT_EQ(pushed_down.sample(negative, {Tokens{0}, {}}, 0).token, 0u);

  params.repetition_penalty = 1e-38f;
  const Logits positive{5.0f, 6.0f};
  Sampler pushed_up = sampler_for(params, positive);
  EXPECT_EQ(pushed_up.sample(positive, {Tokens{0}, {}}, 0).token, 0u);
}

TEST(Penalties, ActOnGreedyRequests) {
  SamplingParams params = greedy_params();
  params.presence_penalty = 2.0f;
  const Logits logits{3.0f, 2.0f};
  Sampler sampler = sampler_for(params, logits);
  EXPECT_EQ(sampler.sample(logits, {{}, Tokens{0}}, 0).token, 1u);
}

TEST(Penalties, DependOnTheHistoryAloneAndNotOnEarlierCalls) {
  const Logits logits = random_logits(40, 3);
  const Tokens prompt{1, 2, 3, 4, 1, 2, 3};
  Sampler used = sampler_for(with_every_penalty(), logits);
  Tokens output;
  for (std::uint64_t step = 0; step < 20; ++step) {
    Sampler fresh = sampler_for(with_every_penalty(), logits);

    const std::uint32_t token = used.sample(logits, {prompt, output}, step).token;

    EXPECT_EQ(fresh.sample(logits, {prompt, output}, step).token, token);
    EXPECT_TRUE(std::ranges::equal(fresh.last_weights(), used.last_weights()));
    output.push_back(token);
  }
}

SamplingParams with_dry() {
  SamplingParams params;
  params.dry_multiplier = 1.0f;
  params.dry_base = 2.0f;
  params.dry_allowed_length = 2;
  return params;
}

const Logits kSix(6, 0.0f);

TEST(Dry, PenalisesTheTokenThatFollowedTheMatchedSuffix) {
  expect_logits(edited_logits(with_dry(), kSix, {0, 1, 2, 3}, {0, 1}), {0, 0, -1, 0, 0, 0});
}

TEST(Dry, GrowsByTheBaseWithEveryFurtherMatchedToken) {
  expect_logits(edited_logits(with_dry(), kSix, {0, 1, 2, 3}, {0, 1, 2}), {0, 0, 0, -2, 0, 0});
  expect_logits(edited_logits(with_dry(), kSix, {0, 1, 2, 3, 4}, {0, 1, 2, 3}), {0, 0, 0, 0, -4, 0});
}

TEST(Dry, LeavesMatchesShorterThanTheAllowedLengthAlone) {
  expect_logits(edited_logits(with_dry(), kSix, {0, 1, 2, 3}, {0}), {0, 0, 0, 0, 0, 0});
}

TEST(Dry, UsesTheLongestOfSeveralMatches) {
  expect_logits(edited_logits(with_dry(), kSix, {4, 1, 2, 3, 0, 1, 2, 3, 4}, {0, 1, 2}), {0, 0, 0, -2, 0, 0});
}

TEST(Dry, ABreakerEndsTheMatch) {
  SamplingParams params = with_dry();
  params.dry_breakers = {0};
  expect_logits(edited_logits(params, kSix, {0, 1, 2, 3}, {0, 1, 2}), {0, 0, 0, -1, 0, 0});
}

TEST(Dry, ABreakerAtTheEndOfTheHistoryTurnsItOff) {
  SamplingParams params = with_dry();
  params.dry_breakers = {1};
  expect_logits(edited_logits(params, kSix, {0, 1, 2, 3}, {0, 1}), {0, 0, 0, 0, 0, 0});
}

TEST(Dry, ABreakerIsNeverPenalised) {
  SamplingParams params = with_dry();
  params.dry_breakers = {2};
  expect_logits(edited_logits(params, kSix, {0, 1, 2, 3}, {0, 1}), {0, 0, 0, 0, 0, 0});
}

TEST(Dry, MatchesAcrossTheBorderOfPromptAndOutput) {
  expect_logits(edited_logits(with_dry(), kSix, {3, 0}, {1, 2, 0, 1}), {0, 0, -1, 0, 0, 0});
}

TEST(Dry, APenaltyBeyondEveryFloatIsStillNotABan) {
  SamplingParams params = with_dry();
  params.temperature = 0.0f;
  const Tokens repeated(2000, 0);
  const Logits logits{5.0f, -kInfinity};
  Sampler sampler = sampler_for(params, logits);
  EXPECT_EQ(sampler.sample(logits, {repeated, {}}, 0).token, 0u);
}

TEST(Dry, ALongRepetitiveHistoryTakesLinearTime) {
  SamplingParams params = with_dry();
  params.dry_base = 1.0f;
  const Tokens repeated(2'000'000, 0);
  expect_logits(edited_logits(params, {0.0f, 0.0f}, repeated, {}), {-1.0, 0.0});
}

SamplingParams with_lz(float penalty) {
  SamplingParams params;
  params.lz_penalty = penalty;
  return params;
}

TEST(LzPenalty, WeighsLongerMatchesMore) {
  expect_logits(edited_logits(with_lz(0.5f), kSix, {0, 1, 2}, {0, 1}), {0, 0, -0.5, 0, 0, 0});
  expect_logits(edited_logits(with_lz(0.5f), kSix, {0, 1, 2, 3}, {0, 1, 2}), {0, 0, 0, -1.5, 0, 0});
  expect_logits(edited_logits(with_lz(0.5f), kSix, {0, 1, 2, 3, 4}, {0, 1, 2, 3}), {0, 0, 0, 0, -3, 0});
}

TEST(LzPenalty, CountsEveryEarlierOccurrence) {
  expect_logits(edited_logits(with_lz(0.5f), kSix, {0, 1, 2, 3, 0, 1, 2}, {0, 1}), {0, 0, -1, 0, 0, 0});
}

TEST(LzPenalty, LooksBackTwoHundredFiftySixTokens) {
  Tokens history{0, 1, 2};
  history.resize(255, 5);
  history.insert(history.end(), {0, 1});
  const Logits seven(7, 0.0f);
  expect_logits(edited_logits(with_lz(0.5f), seven, history, {}), {0, 0, 0, 0, 0, 0, 0});

  history.erase(history.begin() + 3);
  expect_logits(edited_logits(with_lz(0.5f), seven, history, {}), {0, 0, -0.5, 0, 0, 0, 0});
}

TEST(LzPenalty, NeedsFourTokensOfHistory) {
  expect_logits(edited_logits(with_lz(0.5f), {0.0f, 0.0f}, {0, 0, 0}, {}), {0, 0});
}

}  // namespace
}  // namespace metrale::sampling
