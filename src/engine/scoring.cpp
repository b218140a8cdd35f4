// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/engine/scoring.h>

namespace metrale::engine {
namespace {

// The first blocks of a sequence, given back at the end whatever happens.
class BlockLease {
 public:
  BlockLease(kv::PagedKvCache& cache, std::size_t count) : cache_(&cache) {
    try {
      while (blocks_.size() < count) blocks_.push_back(cache.alloc_block());
    } catch (const OutOfMemory&) {
      cache.free_blocks(blocks_);
      throw;
    }
  }
  ~BlockLease() { cache_->free_blocks(blocks_); }
  BlockLease(const BlockLease&) = delete;
  BlockLease& operator=(const BlockLease&) = delete;

  [[nodiscard]] std::span<const BlockId> blocks() const { return blocks_; }

 private:
  kv::PagedKvCache* cache_;
  std::vector<BlockId> blocks_;
};

void check_text(std::span<const std::int32_t> tokens, std::size_t first_target, const Engine& engine) {
  if (first_target == 0 || first_target >= tokens.size()) {
    throw InvalidArgument(fmt::format("no token to score: the first of {} is number {}, and one comes before",
                                      tokens.size(), first_target));
  }
  if (tokens.size() - 1 > engine.limits().max_seq_len) {
    throw InvalidArgument(fmt::format("{} tokens to score together: at most max_seq_len + 1 = {} fit",
                                      tokens.size(), std::uint64_t{engine.limits().max_seq_len} + 1));
  }
  for (const std::int32_t token : tokens) {
    if (token >= 0 && static_cast<std::uint32_t>(token) < engine.config().vocab_size) continue;
    throw InvalidArgument(
        fmt::format("token id {} outside the vocabulary of {}", token, engine.config().vocab_size));
  }
}

// The last rows of `scores` are those of `logits`.
void compare(std::span<const float> reference, std::span<const float> logits, std::size_t vocab,
             std::vector<TokenScore>& scores) {
  const std::size_t rows = logits.size() / vocab;
  for (std::size_t i = 0; i < rows; ++i) {
    TokenScore& score = scores[scores.size() - rows + i];
    const std::span<const float> row = reference.subspan(i * vocab, vocab);
    score.divergence = logit_divergence(row, logits.subspan(i * vocab, vocab));
    score.reference_greedy = static_cast<std::int32_t>(std::ranges::max_element(row) - row.begin());
  }
}

}  // namespace

Bf16Reference::Bf16Reference(Engine& engine)
    : limits_{.max_seq_len = engine.limits().max_seq_len,
              .max_batch_size = 1,
              .max_batch_tokens = engine.limits().max_batch_tokens,
              .block_size = engine.limits().block_size},
      cache_(kv_config(engine.config(), limits_.block_size, {}), limits_.blocks_per_seq(), engine.gpu()),
      decoder_(engine.gpu(), engine.config(), engine.weights(), limits_, cache_,
               {.compute = engine.compute(), .use_graphs = false}) {}

TokenScore score_logits(std::span<const float> logits, std::int32_t token) {
  if (token < 0 || static_cast<std::size_t>(token) >= logits.size()) {
    throw InvalidArgument(fmt::format("token id {} outside the vocabulary of {}", token, logits.size()));
  }
  std::size_t best = 0;
  bool finite = true;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    finite = finite && logits[i] < std::numeric_limits<float>::infinity();
    if (logits[i] > logits[best]) best = i;
  }
  if (!finite || std::isinf(logits[best])) {
    throw DeviceError(
        "scoring", 0,
        "the model gave logits that are not finite; compute in fp32 (--dtype), or check the weights");
  }
  const double max = logits[best];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  return {.token = token,
          .greedy = static_cast<std::int32_t>(best),
          .log_prob = double{logits[static_cast<std::size_t>(token)]} - max - std::log(sum)};
}

double logit_divergence(std::span<const float> reference, std::span<const float> logits) {
  const double reference_max = *std::ranges::max_element(reference);
  const double max = *std::ranges::max_element(logits);
  double reference_sum = 0;
  double sum = 0;
  double difference = 0;  // of the logits, weighted by what the reference makes of them
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double weight = std::exp(double{reference[i]} - reference_max);
    reference_sum += weight;
    sum += std::exp(double{logits[i]} - max);
    if (weight > 0) difference += weight * (double{reference[i]} - double{logits[i]});
  }
  const double divergence =
      difference / reference_sum + (max + std::log(sum)) - (reference_max + std::log(reference_sum));
  if (std::isnan(divergence)) return std::numeric_limits<double>::infinity();
  return std::max(0.0, divergence);  // of equal rows it is rounding alone
}

std::vector<ScoreWindow> score_windows(std::size_t num_tokens, std::size_t window, std::size_t stride,
                                       std::size_t max_windows) {
  if (num_tokens < 2) {
    throw InvalidArgument(
        fmt::format("a text of {} tokens has none to score: each is scored given those before", num_tokens));
  }
  if (window < 2) throw InvalidArgument(fmt::format("a window of {} tokens: at least 2 are needed", window));
  if (stride == 0 || stride > window) {
    throw InvalidArgument(fmt::format(
        "stride {} with a window of {}: from 1 to the window, or tokens would be left out", stride, window));
  }
  std::vector<ScoreWindow> windows;
  std::size_t scored_end = 0;
  for (std::size_t begin = 0; max_windows == 0 || windows.size() < max_windows; begin += stride) {
    const std::size_t end = num_tokens - begin > window ? begin + window : num_tokens;
    const std::size_t first_target = std::max(scored_end, begin + 1);
    if (first_target < end) windows.push_back({begin, first_target, end});
    scored_end = end;
    if (end == num_tokens) break;
  }
  return windows;
}

std::vector<TokenScore> Scorer::score(std::span<const std::int32_t> tokens, std::size_t first_target,
                                      const KeepGoing& keep_going) {
  check_text(tokens, first_target, *engine_);
  Decoder& decoder = engine_->decoder();
  const std::size_t vocab = engine_->config().vocab_size;
  const std::size_t run_tokens = tokens.size() - 1;
  const BlockLease lease(engine_->cache(), ceil_div<std::size_t>(run_tokens, engine_->limits().block_size));
  decoder.set_blocks(0, 0, lease.blocks());
  std::optional<BlockLease> reference_lease;
  if (reference_ != nullptr) {
    reference_lease.emplace(reference_->cache_, lease.blocks().size());
    reference_->decoder_.set_blocks(0, 0, reference_lease->blocks());
  }

  std::vector<TokenScore> scores;
  scores.reserve(tokens.size() - first_target);
  const std::size_t first_row = first_target - 1;  // the position whose logits predict the first target
  for (std::size_t done = 0; done < run_tokens;) {
    if (keep_going && !keep_going()) throw Cancelled("the scoring was cancelled");
    const bool is_context = done < first_row;
    const std::size_t left = is_context ? first_row - done : run_tokens - done;
    const std::uint32_t logit_rows =
        reference_ == nullptr ? decoder.max_logit_rows()
                              : std::min(decoder.max_logit_rows(), reference_->decoder_.max_logit_rows());
    const std::size_t most = is_context ? engine_->limits().max_batch_tokens : logit_rows;
    const std::size_t length = std::min(left, most);
    const StepSequence part{.table_row = 0,
                            .start = static_cast<std::uint32_t>(done),
                            .tokens = tokens.subspan(done, length),
                            .logit_rows = is_context ? 0U : static_cast<std::uint32_t>(length)};
    decoder.run(std::span(&part, 1));
    if (reference_ != nullptr) reference_->decoder_.run(std::span(&part, 1));
    if (!is_context) {
      const std::span<const float> logits = decoder.read_logits();
      for (std::size_t i = 0; i < length; ++i) {
        scores.push_back(score_logits(logits.subspan(i * vocab, vocab), tokens[done + i + 1]));
      }
      if (reference_ != nullptr) compare(reference_->decoder_.read_logits(), logits, vocab, scores);
    }
    done += length;
  }
  return scores;
}

}  // namespace metrale::engine
