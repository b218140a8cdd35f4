// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include <metrale/sampling/fixed_exp.h>
#include <metrale/sampling/rng.h>

#include "sampling/sampling_support.h"

namespace metrale::sampling {
namespace {

SamplingParams seeded(std::uint64_t seed) {
  SamplingParams params;
  params.seed = seed;
  return params;
}

// Rows that depend on the step and on the text so far, as a model's do.
Logits row_of(std::uint64_t step, const Tokens& text) {
  return random_logits(300, step * 1000 + (text.empty() ? 0 : text.back()), 1.0f);
}

// A request as a scheduler sees it: it can be advanced one step at a time, among others.
struct Request {
  explicit Request(const SamplingParams& params) : sampler(params, 300) {}
  void step() {
    const std::uint64_t position = output.size();
    const Logits logits = row_of(position, output);
    output.push_back(sampler.sample(logits, {prompt, output}, prompt.size() + position).token);
  }
  Sampler sampler;
  Tokens prompt{5, 6, 7};
  Tokens output;
};

Tokens text_alone(const SamplingParams& params, int steps = 40) {
  Request request(params);
  for (int i = 0; i < steps; ++i) request.step();
  return request.output;
}

double chi_square(const std::vector<std::uint64_t>& counts, const std::vector<double>& probabilities) {
  double draws = 0.0;
  for (const std::uint64_t count : counts) draws += static_cast<double>(count);
  double sum = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probabilities[i];
    if (expected == 0.0) {
      EXPECT_EQ(counts[i], 0u) << i;
    } else {
      sum += (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) /
             expected;
    }
  }
  return sum;
}

constexpr double kChiSquareOf15 = 45.0;  // exceeded once in ten thousand

TEST(Draw, FollowsTheDistributionOverPositions) {
  const Logits logits = random_logits(16, 1, 1.0f);
  Sampler sampler = sampler_for(seeded(1), logits);
  std::vector<std::uint64_t> counts(16);
  for (std::uint64_t position = 0; position < 200'000; ++position) {
    ++counts[sample_once(sampler, logits, position).token];
  }
  EXPECT_LT(chi_square(counts, probabilities_of(sampler)), kChiSquareOf15);
}

TEST(Draw, FollowsTheDistributionOverSeeds) {
  const Logits logits = random_logits(16, 2, 1.0f);
  std::vector<std::uint64_t> counts(16);
  std::vector<double> probabilities;
  for (std::uint64_t seed = 0; seed < 50'000; ++seed) {
    Sampler sampler = sampler_for(seeded(seed), logits);
    ++counts[sample_once(sampler, logits, 17).token];
    if (seed == 0) probabilities = probabilities_of(sampler);
  }
  EXPECT_LT(chi_square(counts, probabilities), kChiSquareOf15);
}

TEST(Draw, FollowsTheFilteredAndTemperedDistribution) {
  SamplingParams params = seeded(4);
  params.temperature = 1.7f;
  params.top_k = 12;
  params.top_p = 0.95f;
  params.min_p = 0.02f;
  const Logits logits = random_logits(16, 3, 1.5f);
  Sampler sampler = sampler_for(params, logits);
  std::vector<std::uint64_t> counts(16);
  for (std::uint64_t position = 0; position < 200'000; ++position) {
    ++counts[sample_once(sampler, logits, position).token];
  }
  EXPECT_LT(drawable_tokens(sampler).size(), 13u);
  EXPECT_LT(chi_square(counts, probabilities_of(sampler)), kChiSquareOf15);
}

TEST(Draw, NeighbouringPositionsAreIndependent) {
  const Logits logits(4, 0.0f);
  Sampler sampler = sampler_for(seeded(6), logits);
  std::vector<std::uint64_t> pairs(16);
  std::uint32_t previous = 0;
  for (std::uint64_t position = 0; position < 100'000; ++position) {
    const std::uint32_t token = sample_once(sampler, logits, position).token;
    ++pairs[previous * 4 + token];
    previous = token;
  }
  EXPECT_LT(chi_square(pairs, std::vector<double>(16, 1.0 / 16)), kChiSquareOf15);
}

TEST(Draw, ReachesTheTailAtALogitGapOfEighteen) {
  constexpr std::uint64_t kTailTokens = 65536;
  const std::uint64_t tail_weight = fixed_exp(18.0f);
  const std::uint64_t total = kUnitWeight + kTailTokens * tail_weight;
  constexpr int kDraws = 4'000'000;
  std::set<std::uint64_t> hit_tokens;
  int hits = 0;
  for (int i = 0; i < kDraws; ++i) {
    const std::uint64_t target = uniform_below(noise_bits(8, static_cast<std::uint64_t>(i)), total);
    ASSERT_LT(target, total);
    if (target < kUnitWeight) continue;
    ++hits;
    hit_tokens.insert((target - kUnitWeight) / tail_weight);
  }

  const double expected = kDraws * static_cast<double>(total - kUnitWeight) / static_cast<double>(total);
  EXPECT_LT(std::abs(hits - expected) / std::sqrt(expected), 4.0) << hits << " for " << expected;
  // Uniforms of 24 bits have too few values in the tail and would repeat about 440 of these tokens.
  const double repeats = hits * (hits / 2.0) / kTailTokens;
  EXPECT_LT(static_cast<double>(hits) - static_cast<double>(hit_tokens.size()),
            repeats + 5 * std::sqrt(repeats));
}

TEST(Draw, IsAFunctionOfSeedAndPosition) {
  const Logits logits(1000, 0.0f);
  Sampler sampler = sampler_for(seeded(1), logits);
  const std::uint32_t first = sample_once(sampler, logits, 5).token;
  static_cast<void>(sample_once(sampler, logits, 6));
  EXPECT_EQ(sample_once(sampler, logits, 5).token, first);
  EXPECT_NE(text_alone(seeded(1)), text_alone(seeded(2)));
}

TEST(Draw, UsesMoreThanTwentyFourBitsOfTheNoise) {
  constexpr std::uint32_t kMillion = 1'000'000;  // a 24-bit uniform misses one token in thirty
  const Logits logits(kMillion, 0.0f);
  Sampler sampler = sampler_for(seeded(5), logits);
  for (std::uint64_t position = 0; position < 150; ++position) {
    ASSERT_EQ(sample_once(sampler, logits, position).token, uniform_below(noise_bits(5, position), kMillion));
  }
}

TEST(Draw, UsesAllSixtyFourBitsOfTheSeed) {
  EXPECT_NE(text_alone(seeded(1)), text_alone(seeded(1 + (std::uint64_t{1} << 32))));
}

TEST(Draw, TheSameSeedInTwoSlotsWritesTheSameText) {
  Request first(seeded(9));
  Request second(seeded(9));
  for (int i = 0; i < 40; ++i) {
    first.step();
    second.step();
  }
  EXPECT_EQ(first.output, second.output);
}

TEST(Draw, BatchMatesNeverChangeAResult) {
  std::vector<SamplingParams> all(5, seeded(9));
  all[1].top_k = 64;
  all[2].temperature = 0.0f;
  all[3].seed = 12345;
  all[3].repetition_penalty = 1.3f;
  all[4].top_p = 0.5f;
  all[4].logprobs = 4;
  std::vector<Tokens> alone;
  for (const SamplingParams& params : all) alone.push_back(text_alone(params));

  std::vector<Request> batch(all.begin(), all.end());
  for (int i = 0; i < 40; ++i) {
    for (Request& request : batch) request.step();
  }

  for (std::size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(batch[i].output, alone[i]) << i;
}

TEST(Draw, AFilterThatKeepsEveryTokenDoesNotChangeTheDraw) {
  SamplingParams params = seeded(9);
  params.top_k = 300;
  EXPECT_EQ(text_alone(params), text_alone(seeded(9)));
}

TEST(Draw, SamplersOnDifferentThreadsAreIndependent) {
  const Tokens alone = text_alone(seeded(9));
  std::vector<Tokens> texts(4);
  std::vector<std::thread> threads;
  for (Tokens& text : texts) threads.emplace_back([&text] { text = text_alone(seeded(9)); });
  for (std::thread& thread : threads) thread.join();
  for (const Tokens& text : texts) EXPECT_EQ(text, alone);
}

TEST(Draw, AForkContinuesAloneAndLeavesTheOriginalAlone) {
  SamplingParams params = seeded(9);
  params.repetition_penalty = 1.5f;
  params.frequency_penalty = 0.5f;
  params.dry_multiplier = 0.5f;
  const Tokens expected = text_alone(params);

  Request original(params);
  for (int i = 0; i < 10; ++i) original.step();
  std::optional<Request> fork(original);
  for (int i = 0; i < 30; ++i) {
    fork->step();
    original.step();
  }
  EXPECT_EQ(fork->output, expected);
  EXPECT_EQ(original.output, expected);

  original.output.resize(20);
  fork.reset();
  for (int i = 0; i < 20; ++i) original.step();
  EXPECT_EQ(original.output, expected);
}

TEST(Draw, EveryTokenOfALargeVocabularyIsInRange) {
  const Logits logits = random_logits(100'003, 5);
  Sampler sampler = sampler_for(seeded(2), logits);
  for (std::uint64_t position = 0; position < 50; ++position) {
    const SampleResult result = sample_once(sampler, logits, position);
    ASSERT_EQ(result.status, SampleStatus::kOk);
    ASSERT_LT(result.token, 100'003u);
  }
}

TEST(Draw, ReachesBothEndsOfALargeVocabulary) {
  const Logits logits(100'000, 0.0f);
  Sampler sampler = sampler_for(seeded(3), logits);
  std::uint32_t lowest = 100'000;
  std::uint32_t highest = 0;
  for (std::uint64_t position = 0; position < 500; ++position) {
    const std::uint32_t token = sample_once(sampler, logits, position).token;
    lowest = std::min(lowest, token);
    highest = std::max(highest, token);
  }
  EXPECT_LT(lowest, 2'000u);
  EXPECT_GT(highest, 98'000u);
}

TEST(LastWeights, AreEmptyAfterACallThatDrewNothing) {
  SamplingParams params = seeded(1);
  params.adaptive_threshold = 0.9f;
  const Logits open{1, 1, 1};
  Sampler sampler = sampler_for(params, open);
  for (const Logits& closed : {Logits{50, 1, 1}, Logits(3, kNan)}) {
    static_cast<void>(sample_once(sampler, open));
    EXPECT_EQ(sampler.last_weights().size(), 3u);
    static_cast<void>(sample_once(sampler, closed));
    EXPECT_TRUE(sampler.last_weights().empty());
  }
}

TEST(Draw, NeverPicksATokenWithoutWeight) {
  Logits logits(64, -kInfinity);
  logits[63] = -50.0f;
  Sampler sampler = sampler_for(seeded(0), logits);
  for (std::uint64_t position = 0; position < 1000; ++position) {
    ASSERT_EQ(sample_once(sampler, logits, position).token, 63u);
  }
}

TEST(Draw, ATokenBelowHalfAUnitOfWeightIsNeverDrawn) {
  const Logits logits{0.0f, -28.5f};
  EXPECT_EQ(kept({}, logits), (Tokens{0}));
}

}  // namespace
}  // namespace metrale::sampling
