// SPDX-License-Identifier: Apache-2.0
// Random requests against the slow obvious sampler.
#include <gtest/gtest.h>

#include "sampling/reference_sampler.h"

namespace metrale::sampling {
namespace {

constexpr int kRequests = 6000;
constexpr long double kTooClose = 2e-5L;  // fp32 edits may turn a decision that is closer than this

struct RandomRequest {
  explicit RandomRequest(std::uint64_t seed) : generator(seed) {
    vocab_size = static_cast<std::uint32_t>(1 + below(below(3) == 0 ? 300 : 30));
    make_params();
    make_row();
    make_history();
  }

  std::uint64_t below(std::uint64_t bound) { return generator() % bound; }
  bool chance(double probability) { return uniform(0.0f, 1.0f) < static_cast<float>(probability); }
  float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(generator); }

  void make_params() {
    params.seed = generator();
    if (chance(0.7)) params.temperature = uniform(0.3f, 2.5f);
    params.temperature_last = chance(0.3);
    if (chance(0.4)) params.top_k = static_cast<std::int32_t>(below(vocab_size + 5)) - 1;
    if (chance(0.5)) params.top_p = uniform(0.01f, 1.0f);
    if (chance(0.3)) params.min_p = uniform(0.0f, 0.5f);
    if (chance(0.3)) params.top_n_sigma = uniform(0.1f, 4.0f);
    if (chance(0.4)) params.repetition_penalty = uniform(0.5f, 2.0f);
    if (chance(0.3)) params.frequency_penalty = uniform(0.0f, 1.0f);
    if (chance(0.3)) params.presence_penalty = uniform(0.0f, 1.0f);
    if (chance(0.4)) params.penalty_window = static_cast<std::int32_t>(below(40)) - 1;
    if (chance(0.3)) params.lz_penalty = uniform(0.0f, 0.5f);
    if (chance(0.3)) {
      params.dry_multiplier = uniform(0.0f, 1.0f);
      params.dry_base = uniform(1.0f, 1.5f);
      params.dry_allowed_length = static_cast<std::uint32_t>(below(4));
      if (chance(0.5)) params.dry_breakers = {static_cast<std::uint32_t>(below(vocab_size))};
    }
    for (std::uint64_t i = below(4); i > 0; --i) {
      const float bias = chance(0.2) ? -kInfinity : uniform(-3.0f, 3.0f);
      params.logit_bias.emplace_back(static_cast<std::uint32_t>(below(vocab_size)), bias);
    }
  }

  void make_row() {
    const bool on_a_grid = chance(0.3);  // many exact ties
    for (std::uint32_t i = 0; i < vocab_size; ++i) {
      const float logit = uniform(-4.0f, 4.0f);
      logits.push_back(on_a_grid ? std::round(logit * 2) / 2 : logit);
      if (chance(0.03)) logits.back() = chance(0.5) ? kNan : chance(0.5) ? kInfinity : -kInfinity;
    }
    if (!chance(0.3)) return;
    mask.assign((vocab_size + 31) / 32, 0);
    allowed.assign(vocab_size, false);
    for (std::uint32_t i = 0; i < vocab_size; ++i) {
      if (!chance(0.5)) continue;
      allowed[i] = true;
      mask[i / 32] |= 1u << (i % 32);
    }
  }

  void make_history() {
    Tokens alphabet;
    for (int i = 0; i < 4; ++i) alphabet.push_back(static_cast<std::uint32_t>(below(vocab_size + 2)));
    for (std::uint64_t i = below(40); i > 0; --i) prompt.push_back(alphabet[below(4)]);
    for (std::uint64_t i = below(40); i > 0; --i) output.push_back(alphabet[below(4)]);
  }

  std::mt19937_64 generator;
  std::uint32_t vocab_size = 1;
  SamplingParams params;
  Logits logits;
  Tokens mask;
  std::vector<bool> allowed;
  Tokens prompt;
  Tokens output;
};

void expect_agreement(const RandomRequest& request, const ReferenceResult& expected) {
  Sampler sampler(request.params, request.vocab_size);
  const SampleResult result =
      sampler.sample(request.logits, {request.prompt, request.output}, request.output.size(), request.mask);
  if (expected.greedy == kNoToken) {
    EXPECT_EQ(result.status, SampleStatus::kNoCandidate);
    return;
  }
  ASSERT_EQ(result.status, SampleStatus::kOk);
  const std::vector<double> actual = probabilities_of(sampler);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto probability = static_cast<double>(expected.probabilities[i]);
    EXPECT_NEAR(actual[i], probability, probability * 1e-4 + 1e-11) << "token " << i;
    if (probability == 0.0 || probability > 1e-11) {
      EXPECT_EQ(actual[i] > 0.0, probability > 0.0) << "token " << i;
    }
  }
  EXPECT_GT(actual[result.token], 0.0);

  SamplingParams greedy = request.params;
  greedy.temperature = 0.0f;
  Sampler greedy_sampler(greedy, request.vocab_size);
  EXPECT_EQ(greedy_sampler.sample(request.logits, {request.prompt, request.output}, 0, request.mask).token,
            expected.greedy);
}

TEST(SamplerModel, RandomRequestsKeepTheTokensAndProbabilitiesOfTheSlowSampler) {
  int compared = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::uint64_t seed = 0x5A4D0000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomRequest request(seed);
    const ReferenceSampler reference(request.params, request.logits, request.prompt, request.output,
                                     request.allowed);
    if (reference.result().closest < kTooClose) continue;
    ++compared;
    expect_agreement(request, reference.result());
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(compared, kRequests * 9 / 10);
}

}  // namespace
}  // namespace metrale::sampling
