// SPDX-License-Identifier: Apache-2.0
// Short ways to ask a sampler what it keeps and with which probability.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

#include <metrale/sampling/sampler.h>

namespace metrale::sampling {

using Tokens = std::vector<std::uint32_t>;
using Logits = std::vector<float>;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline Sampler sampler_for(const SamplingParams& params, const Logits& logits) {
  return {params, static_cast<std::uint32_t>(logits.size())};
}

inline SampleResult sample_once(Sampler& sampler, const Logits& logits, std::uint64_t position = 0) {
  return sampler.sample(logits, {}, position);
}

// By token id; a greedy sampler has none.
inline std::vector<double> probabilities_of(const Sampler& sampler) {
  double total = 0.0;
  for (const std::uint64_t weight : sampler.last_weights()) total += static_cast<double>(weight);
  std::vector<double> probabilities;
  for (const std::uint64_t weight : sampler.last_weights()) {
    probabilities.push_back(static_cast<double>(weight) / total);
  }
  return probabilities;
}

inline Tokens drawable_tokens(const Sampler& sampler) {
  Tokens tokens;
  for (std::uint32_t id = 0; id < sampler.last_weights().size(); ++id) {
    if (sampler.last_weights()[id] != 0) tokens.push_back(id);
  }
  return tokens;
}

// The tokens that can be drawn from `logits` under `params`.
inline Tokens kept(const SamplingParams& params, const Logits& logits, const Tokens& allowed_mask = {}) {
  Sampler sampler = sampler_for(params, logits);
  static_cast<void>(sampler.sample(logits, {}, 0, allowed_mask));
  return drawable_tokens(sampler);
}

// The logits as the parameters edit them. The last token must be left alone by every edit: it is the
// reference.
inline std::vector<double> edited_logits(const SamplingParams& params, const Logits& logits,
                                         const Tokens& prompt, const Tokens& output) {
  Sampler sampler = sampler_for(params, logits);
  static_cast<void>(sampler.sample(logits, {prompt, output}, 0));
  std::vector<double> edited;
  const auto weights = sampler.last_weights();
  for (const std::uint64_t weight : weights) {
    edited.push_back(static_cast<double>(logits.back()) +
                     std::log(static_cast<double>(weight) / static_cast<double>(weights.back())));
  }
  return edited;
}

inline Tokens mask_of(std::uint32_t vocab_size, std::initializer_list<std::uint32_t> allowed) {
  Tokens words((vocab_size + 31) / 32, 0);
  for (const std::uint32_t token : allowed) words[token / 32] |= 1u << (token % 32);
  return words;
}

inline Logits random_logits(std::size_t count, std::uint64_t seed, float spread = 3.0f) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  Logits logits(count);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

inline SamplingParams greedy_params() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

}  // namespace metrale::sampling
