// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>

#include "sampling/sampling_support.h"

namespace metrale::sampling {
namespace {

constexpr std::uint32_t kVocab = 100;

std::string refusal(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  try {
    const Sampler sampler(params, kVocab);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::string& name, const std::string& value,
                    const std::function<void(SamplingParams&)>& change) {
  EXPECT_THAT(refusal(change), testing::AllOf(testing::HasSubstr(name), testing::HasSubstr(value),
                                              testing::HasSubstr("allowed")));
}

using FloatField = float SamplingParams::*;

TEST(SamplingParams, DefaultsAreNeutral) {
  const Logits logits = random_logits(50, 1);

  Sampler sampler = sampler_for({}, logits);
  static_cast<void>(sample_once(sampler, logits));

  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(probabilities_of(sampler)[i], std::exp(static_cast<double>(logits[i])) / sum, 1e-7);
  }
}

TEST(SamplingParams, EveryNumberRejectsNanAndInfinity) {
  const std::pair<const char*, FloatField> fields[] = {
      {"temperature", &SamplingParams::temperature},
      {"top_p", &SamplingParams::top_p},
      {"min_p", &SamplingParams::min_p},
      {"top_n_sigma", &SamplingParams::top_n_sigma},
      {"repetition_penalty", &SamplingParams::repetition_penalty},
      {"frequency_penalty", &SamplingParams::frequency_penalty},
      {"presence_penalty", &SamplingParams::presence_penalty},
      {"dry_multiplier", &SamplingParams::dry_multiplier},
      {"dry_base", &SamplingParams::dry_base},
      {"lz_penalty", &SamplingParams::lz_penalty},
  };
  for (const auto& [name, field] : fields) {
    expect_refused(name, "nan", [field = field](SamplingParams& p) { p.*field = kNan; });
    expect_refused(name, "inf", [field = field](SamplingParams& p) { p.*field = kInfinity; });
    expect_refused(name, "-1", [field = field](SamplingParams& p) { p.*field = -1.0f; });
  }
  expect_refused("adaptive_threshold", "nan", [](SamplingParams& p) { p.adaptive_threshold = kNan; });
}

TEST(SamplingParams, RepetitionPenaltyOfZeroIsRefused) {
  expect_refused("repetition_penalty", "is 0", [](SamplingParams& p) { p.repetition_penalty = 0.0f; });
}

TEST(SamplingParams, TopPOfZeroIsRefusedRatherThanReadAsOff) {
  expect_refused("top_p", "is 0", [](SamplingParams& p) { p.top_p = 0.0f; });
}

TEST(SamplingParams, ProbabilitiesAboveOneAreRefused) {
  expect_refused("top_p", "1.5", [](SamplingParams& p) { p.top_p = 1.5f; });
  expect_refused("min_p", "1.5", [](SamplingParams& p) { p.min_p = 1.5f; });
  expect_refused("adaptive_threshold", "1.5", [](SamplingParams& p) { p.adaptive_threshold = 1.5f; });
}

TEST(SamplingParams, AdaptiveThresholdOfZeroIsRefused) {
  expect_refused("adaptive_threshold", "is 0", [](SamplingParams& p) { p.adaptive_threshold = 0.0f; });
}

TEST(SamplingParams, CountsBelowMinusOneAreRefused) {
  expect_refused("top_k", "-2", [](SamplingParams& p) { p.top_k = -2; });
  expect_refused("penalty_window", "-2", [](SamplingParams& p) { p.penalty_window = -2; });
}

TEST(SamplingParams, DryBaseBelowOneIsRefused) {
  expect_refused("dry_base", "0.5", [](SamplingParams& p) { p.dry_base = 0.5f; });
}

TEST(SamplingParams, TokenIdsOutsideTheVocabularyAreRefused) {
  expect_refused("logit_bias", "100", [](SamplingParams& p) { p.logit_bias = {{kVocab, 1.0f}}; });
  expect_refused("dry_breakers", "100", [](SamplingParams& p) { p.dry_breakers = {kVocab}; });
  const auto minus_one = static_cast<std::uint32_t>(-1);
  expect_refused("logit_bias", "4294967295", [&](SamplingParams& p) { p.logit_bias = {{minus_one, 1.0f}}; });
}

TEST(SamplingParams, BiasMayBeMinusInfinityButNotNanOrPlusInfinity) {
  EXPECT_EQ(refusal([](SamplingParams& p) { p.logit_bias = {{7, -kInfinity}}; }), "accepted");
  expect_refused("logit_bias of token 7", "nan", [](SamplingParams& p) { p.logit_bias = {{7, kNan}}; });
  expect_refused("logit_bias of token 7", "inf", [](SamplingParams& p) { p.logit_bias = {{7, kInfinity}}; });
}

TEST(SamplingParams, AnEmptyVocabularyIsRefused) {
  EXPECT_THROW(Sampler({}, 0), InvalidArgument);
}

TEST(SamplingParams, AVocabularyWhoseWeightsCouldOverflowIsRefused) {
  EXPECT_THROW(validate({}, kMaxVocabSize + 1), InvalidArgument);
  EXPECT_NO_THROW(validate({}, kMaxVocabSize));
}

TEST(SamplingParams, BoundsThemselvesAreAccepted) {
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.temperature = 0.0f;
              p.top_k = -1;
              p.top_p = 1.0f;
              p.min_p = 1.0f;
              p.penalty_window = -1;
              p.dry_base = 1.0f;
              p.adaptive_threshold = 1.0f;
              p.logit_bias = {{kVocab - 1, -100.0f}};
            }),
            "accepted");
}

}  // namespace
}  // namespace metrale::sampling
