// SPDX-License-Identifier: Apache-2.0
// SamplingParams: what one request asks of the sampler. Every default is neutral: the token is drawn from the
// model's own distribution. docs/sampling.md gives the order in which the fields act.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace metrale::sampling {

inline constexpr std::uint32_t kMaxVocabSize = 1u << 23;  // sums of weights then stay below 2^63
inline constexpr float kGreedyTemperature = 1e-5f;        // below it the best token is taken
inline constexpr float kDefaultAdaptiveThreshold = 0.9f;  // what --adaptive-sampling stands for

// Which distribution log-probabilities describe.
enum class LogprobMode : std::uint8_t {
  kRaw,        // the logits as given, at temperature 1: what the model said
  kProcessed,  // after every edit and filter, at the request's temperature: what the draw used
};

struct SamplingParams {
  float temperature = 1.0f;       // >= 0; below kGreedyTemperature is greedy
  bool temperature_last = false;  // filters see temperature 1, only the draw sees `temperature`
  std::int32_t top_k = 0;         // 0 or -1: off; above the vocabulary: the whole vocabulary
  float top_p = 1.0f;             // (0, 1]; 1: off
  float min_p = 0.0f;             // [0, 1]; 0: off
  float top_n_sigma = 0.0f;       // >= 0; 0: off

  float repetition_penalty = 1.0f;  // > 0; 1: off. Tokens of the prompt and of the output
  float frequency_penalty = 0.0f;   // >= 0; per occurrence in the output
  float presence_penalty = 0.0f;    // >= 0; once for a token of the output
  std::int32_t penalty_window = 0;  // these three see the last n tokens of prompt + output; 0 or -1: all

  float dry_multiplier = 0.0f;              // >= 0; 0: off
  float dry_base = 1.75f;                   // >= 1
  std::uint32_t dry_allowed_length = 2;     // matches of at least this many tokens are penalised
  std::vector<std::uint32_t> dry_breakers;  // token ids that end a match
  float lz_penalty = 0.0f;                  // >= 0; 0: off

  std::vector<std::pair<std::uint32_t, float>> logit_bias;  // (token, added value); -inf bans; repeats add up
  std::uint64_t seed = 0;                                   // the caller picks one where the user gave none

  std::optional<float> adaptive_threshold;  // (0, 1]: take a token that is at least this probable greedily
  std::optional<std::uint32_t> logprobs;    // report the token's log-probability and the n best tokens
  LogprobMode logprob_mode = LogprobMode::kRaw;

  [[nodiscard]] bool is_greedy() const { return temperature < kGreedyTemperature; }
};

// Throws InvalidArgument naming the parameter, its value and the allowed range.
void validate(const SamplingParams& params, std::uint32_t vocab_size);

}  // namespace metrale::sampling
