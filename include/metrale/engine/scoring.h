// SPDX-License-Identifier: Apache-2.0
// Scoring: how likely a model finds a text that is already there. docs/cli.md has the rule by which a long
// text is cut into windows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <metrale/engine/engine.h>

namespace metrale::engine {

struct TokenScore {
  std::int32_t token = 0;
  std::int32_t greedy = 0;  // the most likely token in its place; the lowest id of several
  double log_prob = 0;      // natural logarithm; -inf where the model bans the token
  // Beside a reference: the KL divergence from its distribution, in nats, and its most likely token.
  double divergence = 0;
  std::int32_t reference_greedy = 0;
  [[nodiscard]] bool is_greedy() const { return token == greedy; }
};

// One row of logits against the token that followed: log-softmax in double precision. Throws InvalidArgument
// for a token outside the row, DeviceError where a logit is NaN or +inf, or all are -inf.
[[nodiscard]] TokenScore score_logits(std::span<const float> logits, std::int32_t token);

// KL divergence, in nats, of softmax(logits) from softmax(reference): Σ p (log p - log q), in double
// precision; infinite where a row has a NaN or +inf, or one row bans what the other does not.
[[nodiscard]] double logit_divergence(std::span<const float> reference, std::span<const float> logits);

// Tokens [begin, end) of a text are run together; [first_target, end) are scored.
struct ScoreWindow {
  std::size_t begin = 0;
  std::size_t first_target = 0;
  std::size_t end = 0;
  friend bool operator==(const ScoreWindow&, const ScoreWindow&) = default;
};

// Windows of `window` tokens, `stride` apart, until one reaches the end of the text. What a window has in
// common with the one before is context only, and so is its first token. A window without a target is left
// out. `max_windows` 0: all of them. Throws InvalidArgument: a text of fewer than two tokens, a window of
// fewer than two, a stride of 0 or beyond the window (tokens would be left out).
[[nodiscard]] std::vector<ScoreWindow> score_windows(std::size_t num_tokens, std::size_t window,
                                                     std::size_t stride, std::size_t max_windows = 0);

// The engine's model with a cache in BF16, whose blocks are its own: what quantised caches are compared with.
class Bf16Reference {
 public:
  // Texts of at most max_seq_len tokens of the engine, which outlives it. Throws OutOfMemory.
  explicit Bf16Reference(Engine& engine);

 private:
  friend class Scorer;
  gpu::EngineLimits limits_;
  kv::PagedKvCache cache_;
  Decoder decoder_;
};

// Scores texts on an engine that has no requests meanwhile. Threads: one caller, the engine's.
class Scorer {
 public:
  // A false return stops with Cancelled; asked before every step.
  using KeepGoing = std::function<bool()>;

  // Both outlive the scorer. `reference` null: scores have no divergence.
  explicit Scorer(Engine& engine, Bf16Reference* reference = nullptr)
      : engine_(&engine), reference_(reference) {}

  // Blocking: the scores of tokens[first_target], tokens[first_target + 1], … given everything before each.
  // At most max_seq_len + 1 tokens: the last one is predicted, not run. Logits are read in parts of what one
  // step can give, so that memory does not grow with the text. Throws InvalidArgument (a target 0 or beyond
  // the text, too many tokens, an id outside the vocabulary), OutOfMemory where the cache has too few free
  // blocks, DeviceError as score_logits does.
  [[nodiscard]] std::vector<TokenScore> score(std::span<const std::int32_t> tokens, std::size_t first_target,
                                              const KeepGoing& keep_going = {});

 private:
  Engine* engine_;
  Bf16Reference* reference_;
};

}  // namespace metrale::engine
