// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/sampling/fixed_exp.h>
#include <metrale/sampling/rng.h>
#include <metrale/sampling/sampler.h>
#include <metrale/sampling/token_order.h>

#include "sampling/filters.h"
#include "sampling/logprobs.h"
#include "sampling/penalties.h"
#include "sampling/row_passes.h"

namespace metrale::sampling {
namespace {

constexpr std::size_t kMaskWordBits = 32;

void require_size(const char* what, std::size_t actual, std::size_t wanted) {
  if (actual != wanted) {
    throw InvalidArgument(
        fmt::format("sampling: {} has {} entries; the vocabulary asks for {}", what, actual, wanted));
  }
}

void apply_mask(std::span<const std::uint32_t> allowed, std::span<float> row) {
  for (const std::uint32_t word : allowed) {
    const std::size_t covered = std::min(kMaskWordBits, row.size());
    for (std::size_t bit = 0; bit < covered; ++bit)
      row[bit] = ((word >> bit) & 1) != 0 ? row[bit] : kExcluded;
    row = row.subspan(covered);
  }
}

// -sum p ln p, from the weights and the gaps that made them. For people and telemetry, not for decisions.
float entropy_of(std::span<const float> row, std::span<const std::uint64_t> weights, std::uint64_t total,
                 float best, float temperature) {
  double weighted_gaps = 0.0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (weights[i] == 0) continue;
    weighted_gaps += static_cast<double>(weights[i]) * ((static_cast<double>(best) - row[i]) / temperature);
  }
  const auto mass = static_cast<double>(total);
  return static_cast<float>(weighted_gaps / mass + std::log(mass * 0x1p-40));
}

}  // namespace

Sampler::Sampler(SamplingParams params, std::uint32_t vocab_size)
    : params_(std::move(params)), vocab_size_(vocab_size) {
  validate(params_, vocab_size_);
  // One spelling for "off" from here on.
  params_.top_k = std::max(params_.top_k, 0);
  if (params_.logprobs) params_.logprobs = std::min(*params_.logprobs, vocab_size_);

  row_.resize(vocab_size_);
  if (!params_.is_greedy()) weights_.resize(vocab_size_);
  const bool selects = !params_.is_greedy() && (params_.top_k != 0 || params_.top_p < 1.0f);
  if (selects || params_.logprobs) keys_.resize(vocab_size_);
  if (has_penalties(params_)) {
    penalty_scratch_.counts.resize(vocab_size_);
    penalty_scratch_.touched.resize(vocab_size_);
  }
  top_.resize(params_.logprobs.value_or(0));
}

SampleResult Sampler::sample(std::span<const float> logits, const TokenHistory& history,
                             std::uint64_t position, std::span<const std::uint32_t> allowed) {
  require_size("the row of logits", logits.size(), vocab_size_);
  if (!allowed.empty()) {
    require_size("the mask of allowed tokens", allowed.size(),
                 ceil_div<std::size_t>(vocab_size_, kMaskWordBits));
  }
  SampleResult result;
  drew_ = false;
  const NonFiniteCounts counts = load_row(logits, row_);
  result.non_finite = counts.all;
  result.broken = counts.all - counts.minus_infinities;
  apply_logit_bias(params_.logit_bias, row_);
  if (has_penalties(params_)) apply_penalties(params_, history, row_, penalty_scratch_);
  if (!allowed.empty()) apply_mask(allowed, row_);

  const auto best = greedy_token(row_);
  if (!best) return result;
  result.status = SampleStatus::kOk;
  result.token = *best;
  if (!params_.is_greedy()) draw(*best, position, result);
  if (params_.logprobs) report_logprobs(logits, result);
  return result;
}

void Sampler::draw(std::uint32_t best, std::uint64_t position, SampleResult& result) {
  const float best_logit = row_[best];
  if (params_.top_n_sigma > 0.0f) drop_below_sigma(best_logit, params_.top_n_sigma, row_);

  float temperature = params_.temperature_last ? 1.0f : params_.temperature;
  std::uint64_t total = weigh(row_, best_logit, temperature, weights_);
  if (params_.adaptive_threshold &&
      mass_of_share(total, to_share(*params_.adaptive_threshold)) <= kUnitWeight) {
    result.took_greedy_shortcut = true;
    return;
  }

  const std::uint64_t lowest_key =
      lowest_kept_key(row_, weights_, total, static_cast<std::uint32_t>(params_.top_k), params_.top_p, keys_);
  const std::uint64_t lowest_weight = mass_of_share(kUnitWeight, to_share(params_.min_p));
  if (lowest_key != 0 || lowest_weight != 0) total = drop_below(lowest_key, lowest_weight, row_, weights_);
  if (params_.temperature_last && params_.temperature != 1.0f) {
    temperature = params_.temperature;
    total = weigh(row_, best_logit, temperature, weights_);
  }

  result.token = token_at(uniform_below(noise_bits(params_.seed, position), total), weights_);
  result.entropy = entropy_of(row_, weights_, total, best_logit, temperature);
  drew_ = true;
}

void Sampler::report_logprobs(std::span<const float> logits, SampleResult& result) {
  const bool raw = params_.logprob_mode == LogprobMode::kRaw;
  const float temperature = raw || params_.is_greedy() ? 1.0f : params_.temperature;
  std::span<TokenLogprob> top(top_);
  result.logprob =
      row_logprobs(raw ? logits : std::span<const float>(row_), temperature, result.token, keys_, top);
  result.top = top;
}

std::span<const std::uint64_t> Sampler::last_weights() const {
  return drew_ ? std::span<const std::uint64_t>(weights_) : std::span<const std::uint64_t>();
}

}  // namespace metrale::sampling
