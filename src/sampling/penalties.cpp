// SPDX-License-Identifier: Apache-2.0
#include "sampling/penalties.h"

#include <algorithm>
#include <limits>

#include <metrale/sampling/token_order.h>

namespace metrale::sampling {
namespace {

constexpr std::size_t kLzWindowTokens = 256;
constexpr std::size_t kLzMinHistory = 4;
constexpr std::size_t kLzLongestMatch = 4;  // n-grams of 3 to 5 tokens: a match of n - 1 and the candidate

// Prompt and output as one sequence.
class JoinedHistory {
 public:
  explicit JoinedHistory(const TokenHistory& history) : history_(history) {}
  [[nodiscard]] std::size_t size() const { return history_.prompt.size() + history_.output.size(); }
  [[nodiscard]] std::uint32_t at(std::size_t i) const {
    const std::size_t prompt_size = history_.prompt.size();
    return i < prompt_size ? history_.prompt[i] : history_.output[i - prompt_size];
  }
  [[nodiscard]] std::uint32_t from_end(std::size_t i) const { return at(size() - 1 - i); }

 private:
  TokenHistory history_;
};

void replace(float& logit, float edited) {
  if (!is_finite(logit)) return;
  constexpr float kLargest = std::numeric_limits<float>::max();
  logit = std::clamp(edited, -kLargest, kLargest);
}

// One number per distinct token of the vocabulary; visit() hands them out and clears them.
class TokenTally {
 public:
  TokenTally(std::size_t vocab_size, PenaltyScratch& scratch) : vocab_size_(vocab_size), scratch_(scratch) {}
  void add(std::uint32_t token, std::uint32_t amount) {
    if (touch(token)) scratch_.counts[token] += amount;
  }
  void raise_to(std::uint32_t token, std::uint32_t value) {
    if (touch(token)) scratch_.counts[token] = std::max(scratch_.counts[token], value);
  }
  template <class Visitor>
  void visit(const Visitor& visitor) {
    for (const std::uint32_t token : std::span(scratch_.touched).first(touched_)) {
      visitor(token, scratch_.counts[token]);
      scratch_.counts[token] = 0;
    }
    touched_ = 0;
  }

 private:
  bool touch(std::uint32_t token) {
    if (token >= vocab_size_) return false;
    if (scratch_.counts[token] == 0) scratch_.touched[touched_++] = token;
    return true;
  }

  std::size_t vocab_size_;
  PenaltyScratch& scratch_;
  std::size_t touched_ = 0;
};

// What the penalty window leaves of a history: its last tokens.
TokenHistory windowed(const TokenHistory& history, std::int32_t window) {
  if (window <= 0) return history;
  const auto wanted = static_cast<std::size_t>(window);
  const std::size_t output_size = std::min(wanted, history.output.size());
  const std::size_t prompt_size = std::min(wanted - output_size, history.prompt.size());
  return {history.prompt.last(prompt_size), history.output.last(output_size)};
}

void apply_repetition(float penalty, const TokenHistory& seen, std::span<float> row, TokenTally& tally) {
  for (const std::uint32_t token : seen.prompt) tally.raise_to(token, 1);
  for (const std::uint32_t token : seen.output) tally.raise_to(token, 1);
  tally.visit([&](std::uint32_t token, std::uint32_t) {
    const float logit = row[token];
    replace(row[token], logit > 0.0f ? logit / penalty : logit * penalty);
  });
}

void apply_frequency_and_presence(const SamplingParams& params, std::span<const std::uint32_t> output,
                                  std::span<float> row, TokenTally& tally) {
  for (const std::uint32_t token : output) tally.add(token, 1);
  tally.visit([&](std::uint32_t token, std::uint32_t count) {
    replace(row[token], row[token] - params.frequency_penalty * static_cast<float>(count));
    replace(row[token], row[token] - params.presence_penalty);
  });
}

// For every i >= 1, how many tokens ending i before the end equal those at the end: the Z function of the
// reversed history, in linear time however repetitive the text is.
void suffix_matches(const JoinedHistory& history, std::vector<std::uint32_t>& matches) {
  const std::size_t size = history.size();
  matches.resize(size);
  std::size_t left = 0;
  std::size_t right = 0;
  for (std::size_t i = 1; i < size; ++i) {
    std::size_t length = i < right ? std::min<std::size_t>(right - i, matches[i - left]) : 0;
    while (i + length < size && history.from_end(length) == history.from_end(i + length)) ++length;
    matches[i] = static_cast<std::uint32_t>(length);
    if (i + length > right) {
      left = i;
      right = i + length;
    }
  }
}

// Squaring in fp32: the same bits everywhere, which a library pow does not promise.
float integer_power(float base, std::uint32_t exponent) {
  float power = 1.0f;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) power *= base;
    base *= base;
  }
  return power;
}

void apply_dry(const SamplingParams& params, const JoinedHistory& history, std::span<float> row,
               TokenTally& tally, std::vector<std::uint32_t>& matches) {
  const auto is_breaker = [&](std::uint32_t token) {
    return std::find(params.dry_breakers.begin(), params.dry_breakers.end(), token) !=
           params.dry_breakers.end();
  };
  std::uint32_t longest = 0;  // no match reaches past the last breaker
  while (longest < history.size() && !is_breaker(history.from_end(longest))) ++longest;
  if (longest == 0) return;

  suffix_matches(history, matches);
  for (std::size_t i = 1; i < history.size(); ++i) {
    const std::uint32_t length = std::min(matches[i], longest);
    const std::uint32_t next = history.from_end(i - 1);
    if (length != 0 && length >= params.dry_allowed_length && !is_breaker(next)) tally.raise_to(next, length);
  }
  tally.visit([&](std::uint32_t token, std::uint32_t length) {
    const float power = integer_power(params.dry_base, length - params.dry_allowed_length);
    replace(row[token], row[token] - params.dry_multiplier * power);
  });
}

void apply_lz(float penalty, const JoinedHistory& history, std::span<float> row, TokenTally& tally) {
  if (history.size() < kLzMinHistory) return;
  const std::size_t window = std::min(history.size(), kLzWindowTokens);
  for (std::size_t i = 1; i < window; ++i) {  // the token i - 1 before the end follows the match
    std::size_t length = 0;
    while (length < kLzLongestMatch && i + length < window &&
           history.from_end(length) == history.from_end(i + length)) {
      ++length;
    }
    std::uint32_t amount = 0;
    for (std::size_t match = 2; match <= length; ++match) amount += static_cast<std::uint32_t>(match - 1);
    if (amount != 0) tally.add(history.from_end(i - 1), amount);
  }
  tally.visit([&](std::uint32_t token, std::uint32_t amount) {
    replace(row[token], row[token] - penalty * static_cast<float>(amount));
  });
}

}  // namespace

void apply_logit_bias(std::span<const std::pair<std::uint32_t, float>> bias, std::span<float> row) {
  for (const auto& [token, value] : bias) {
    if (is_finite(value)) {
      replace(row[token], row[token] + value);
    } else {
      row[token] = value;
    }
  }
}

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
         params.presence_penalty != 0.0f || params.dry_multiplier != 0.0f || params.lz_penalty != 0.0f;
}

void apply_penalties(const SamplingParams& params, const TokenHistory& history, std::span<float> row,
                     PenaltyScratch& scratch) {
  TokenTally tally(row.size(), scratch);
  const TokenHistory seen = windowed(history, params.penalty_window);
  if (params.repetition_penalty != 1.0f) apply_repetition(params.repetition_penalty, seen, row, tally);
  if (params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f) {
    apply_frequency_and_presence(params, seen.output, row, tally);
  }
  const JoinedHistory whole(history);
  if (params.dry_multiplier != 0.0f) apply_dry(params, whole, row, tally, scratch.matches);
  if (params.lz_penalty != 0.0f) apply_lz(params.lz_penalty, whole, row, tally);
}

}  // namespace metrale::sampling
