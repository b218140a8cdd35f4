// SPDX-License-Identifier: Apache-2.0
// The vectors of scripts/golden/sampling_golden.py.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/sampling/fixed_exp.h>

#include "sampling/sampling_support.h"

namespace metrale::sampling {
namespace {

using nlohmann::json;

json golden() {
  std::ifstream file(std::string(METRALE_GOLDEN_DIR) + "/sampling/cases.json");
  return json::parse(file);
}

SamplingParams params_of(const json& fields) {
  SamplingParams params;
  params.temperature = fields.value("temperature", params.temperature);
  params.temperature_last = fields.value("temperature_last", params.temperature_last);
  params.top_k = fields.value("top_k", params.top_k);
  params.top_p = fields.value("top_p", params.top_p);
  params.min_p = fields.value("min_p", params.min_p);
  params.top_n_sigma = fields.value("top_n_sigma", params.top_n_sigma);
  params.repetition_penalty = fields.value("repetition_penalty", params.repetition_penalty);
  params.frequency_penalty = fields.value("frequency_penalty", params.frequency_penalty);
  params.presence_penalty = fields.value("presence_penalty", params.presence_penalty);
  params.penalty_window = fields.value("penalty_window", params.penalty_window);
  params.dry_multiplier = fields.value("dry_multiplier", params.dry_multiplier);
  params.dry_base = fields.value("dry_base", params.dry_base);
  params.dry_allowed_length = fields.value("dry_allowed_length", params.dry_allowed_length);
  params.dry_breakers = fields.value("dry_breakers", params.dry_breakers);
  params.lz_penalty = fields.value("lz_penalty", params.lz_penalty);
  params.logit_bias = fields.value("logit_bias", params.logit_bias);
  return params;
}

Tokens mask_of_case(const json& entry) {
  Tokens words;
  if (!entry.contains("allowed")) return words;
  words.assign((entry.at("logits").size() + 31) / 32, 0);
  for (const std::uint32_t token : entry.at("allowed").get<Tokens>()) words[token / 32] |= 1u << (token % 32);
  return words;
}

TEST(SamplerGolden, EveryCaseKeepsItsTokensWithTheirProbabilities) {
  const json document = golden();
  ASSERT_EQ(document.at("cases").size(), 80u);
  for (const json& entry : document.at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const auto logits = entry.at("logits").get<Logits>();
    const auto prompt = entry.at("prompt").get<Tokens>();
    const auto output = entry.at("output").get<Tokens>();
    Sampler sampler = sampler_for(params_of(entry.at("params")), logits);

    static_cast<void>(sampler.sample(logits, {prompt, output}, 0, mask_of_case(entry)));

    EXPECT_EQ(drawable_tokens(sampler), entry.at("kept").get<Tokens>());
    const auto expected = entry.at("probabilities").get<std::vector<double>>();
    std::size_t i = 0;
    for (const double probability : probabilities_of(sampler)) {
      if (probability == 0.0) continue;
      ASSERT_LT(i, expected.size());
      EXPECT_NEAR(probability, expected[i], expected[i] * 1e-5 + 1e-11);
      ++i;
    }
  }
}

TEST(SamplerGolden, EveryCaseHasItsGreedyToken) {
  const json document = golden();
  ASSERT_EQ(document.at("cases").size(), 80u);
  for (const json& entry : document.at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const auto logits = entry.at("logits").get<Logits>();
    SamplingParams params = params_of(entry.at("params"));
    params.temperature = 0.0f;
    Sampler sampler = sampler_for(params, logits);
    const auto prompt = entry.at("prompt").get<Tokens>();
    const auto output = entry.at("output").get<Tokens>();
    EXPECT_EQ(sampler.sample(logits, {prompt, output}, 0, mask_of_case(entry)).token,
              entry.at("greedy").get<std::uint32_t>());
  }
}

TEST(SamplerGolden, WeightsAreTheExponentialInUnitsOfTwoToTheMinusForty) {
  for (const auto& [gap, weight] : golden().at("exp").get<std::vector<std::pair<float, double>>>()) {
    EXPECT_NEAR(static_cast<double>(fixed_exp(gap)), weight, weight * 2e-8 + 0.5001) << gap;
  }
}

}  // namespace
}  // namespace metrale::sampling
