// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/sampling/params.h>

namespace metrale::sampling {
namespace {

template <class Value>
void require(bool holds, std::string_view name, const Value& value, std::string_view allowed) {
  if (!holds) throw InvalidArgument(fmt::format("sampling: {} is {}; allowed: {}", name, value, allowed));
}

void require_at_least_zero(std::string_view name, float value) {
  require(std::isfinite(value) && value >= 0.0f, name, value, "a finite number from 0");
}

void require_token(std::string_view name, std::uint32_t token, std::uint32_t vocab_size) {
  require(token < vocab_size, name, token,
          fmt::format("a token id below the vocabulary size, {}", vocab_size));
}

}  // namespace

void validate(const SamplingParams& params, std::uint32_t vocab_size) {
  require(vocab_size >= 1 && vocab_size <= kMaxVocabSize, "vocab_size", vocab_size,
          fmt::format("1 to {}", kMaxVocabSize));
  require_at_least_zero("temperature", params.temperature);
  require(params.top_k >= -1, "top_k", params.top_k, "-1 or 0 (off) or a positive count");
  require(params.top_p > 0.0f && params.top_p <= 1.0f, "top_p", params.top_p, "above 0, up to 1 (off)");
  require(params.min_p >= 0.0f && params.min_p <= 1.0f, "min_p", params.min_p, "0 (off) to 1");
  require_at_least_zero("top_n_sigma", params.top_n_sigma);

  require(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0.0f, "repetition_penalty",
          params.repetition_penalty, "a finite number above 0; 1 is off");
  require_at_least_zero("frequency_penalty", params.frequency_penalty);
  require_at_least_zero("presence_penalty", params.presence_penalty);
  require(params.penalty_window >= -1, "penalty_window", params.penalty_window,
          "-1 or 0 (whole history) or a positive count");

  require_at_least_zero("dry_multiplier", params.dry_multiplier);
  require(std::isfinite(params.dry_base) && params.dry_base >= 1.0f, "dry_base", params.dry_base,
          "a finite number from 1");
  for (const std::uint32_t token : params.dry_breakers) require_token("dry_breakers", token, vocab_size);
  require_at_least_zero("lz_penalty", params.lz_penalty);

  for (const auto& [token, bias] : params.logit_bias) {
    require_token("logit_bias token", token, vocab_size);
    require(!std::isnan(bias) && bias < HUGE_VALF, fmt::format("logit_bias of token {}", token), bias,
            "a finite number, or -inf to ban the token");
  }
  if (params.adaptive_threshold) {
    const float threshold = *params.adaptive_threshold;
    require(threshold > 0.0f && threshold <= 1.0f, "adaptive_threshold", threshold, "above 0, up to 1");
  }
}

}  // namespace metrale::sampling
