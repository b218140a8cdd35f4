// SPDX-License-Identifier: Apache-2.0
// Sampler: turns one row of logits into one token, on the host. The result is a pure function of the
// parameters, the logits, the history, the position and the mask; docs/sampling.md has the order of
// operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <metrale/sampling/params.h>

namespace metrale::sampling {

inline constexpr std::uint32_t kNoToken = 0xFFFFFFFF;

// Both parts whole, however much of the prompt came from a cache. Ids outside the vocabulary (image
// placeholders) are allowed: they take part in matches and are never penalised.
struct TokenHistory {
  std::span<const std::uint32_t> prompt;
  std::span<const std::uint32_t> output;
};

enum class SampleStatus : std::uint8_t {
  kOk,
  kNoCandidate,  // every token is banned, masked or not finite: the request cannot go on, its mates can
};

struct TokenLogprob {
  std::uint32_t token = kNoToken;
  float logprob = 0.0f;    // natural logarithm, finite: at least kLogprobFloor
  std::uint32_t rank = 0;  // 1 + the number of tokens with a larger logit
};

inline constexpr float kLogprobFloor = -9999.0f;

struct SampleResult {
  SampleStatus status = SampleStatus::kNoCandidate;
  std::uint32_t token = kNoToken;     // below the vocabulary size when status is kOk
  bool took_greedy_shortcut = false;  // the adaptive threshold decided
  std::uint32_t non_finite = 0;       // logits of the row given that are NaN, +inf or -inf
  std::uint32_t broken = 0;           // those that are NaN or +inf: no mask writes them, the model did
  float entropy = 0.0f;               // nats, of the distribution drawn from; 0 for a greedy choice
  TokenLogprob logprob;               // of `token`; filled where params.logprobs is set
  // The best params.logprobs tokens, best first; `token` is among them only if it belongs there. Lives in the
  // sampler until its next call.
  std::span<const TokenLogprob> top;
};

// Buffers of the penalties.
struct PenaltyScratch {
  std::vector<std::uint32_t> counts;   // [token], all zero between calls
  std::vector<std::uint32_t> touched;  // the tokens whose count is not zero
  std::vector<std::uint32_t> matches;  // DRY: as long as the history
};

// Owns its buffers (4 to 28 bytes per vocabulary entry, by what the parameters ask); they are allocated by
// the constructor. A copy is a fork: it shares nothing. One sampler serves one thread at a time; different
// samplers are independent.
class Sampler {
 public:
  // Throws InvalidArgument as validate() does.
  Sampler(SamplingParams params, std::uint32_t vocab_size);

  // `logits` has vocab_size entries and is not changed. `position` is the absolute position of the token to
  // be chosen: prompt length + output length. `allowed`, unless empty, has ceil(vocab_size / 32) words; token
  // i may be chosen if bit i % 32 of word i / 32 is set. Throws InvalidArgument on a wrong size. Allocates
  // nothing, except that DRY keeps a buffer as long as the history.
  [[nodiscard]] SampleResult sample(std::span<const float> logits, const TokenHistory& history,
                                    std::uint64_t position, std::span<const std::uint32_t> allowed = {});

  // The distribution of the last draw, by token id, in the units of fixed_exp.h: 0 for a token that could not
  // be drawn. Empty after a greedy choice and after kNoCandidate. Lives until the next call.
  [[nodiscard]] std::span<const std::uint64_t> last_weights() const;

  [[nodiscard]] const SamplingParams& params() const { return params_; }
  [[nodiscard]] std::uint32_t vocab_size() const { return vocab_size_; }

 private:
  void draw(std::uint32_t best, std::uint64_t position, SampleResult& result);
  void report_logprobs(std::span<const float> logits, SampleResult& result);

  SamplingParams params_;
  std::uint32_t vocab_size_;
  bool drew_ = false;
  std::vector<float> row_;              // edited logits; -inf marks an excluded token
  std::vector<std::uint64_t> weights_;  // [token]; empty for greedy requests
  std::vector<std::uint64_t> keys_;     // scratch of the selections
  PenaltyScratch penalty_scratch_;
  std::vector<TokenLogprob> top_;
};

}  // namespace metrale::sampling
