// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include <metrale/base/error.h>
#include <metrale/quant/kv_error.h>

namespace metrale::quant {
namespace {

constexpr std::uint32_t kBlock = 16;  // vectors that a stripe holds at a time
constexpr float kHeadroom = 2;        // of a scale that is frozen before it has seen everything
constexpr float kLargestE4m3 = 448;
constexpr float kLargestE2m1 = 6;
constexpr std::size_t kLanes = 8;  // partial sums of a product, so that it needs no reordering to be fast

double dot(const float* a, const float* b, std::size_t count) {
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

SquaredError squared_error(std::span<const float> x, std::span<const float> back) {
  expects(x.size() == back.size(), "squared_error: vectors of different sizes");
  SquaredError sum;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double original = x[i];
    sum.error += (original - back[i]) * (original - back[i]);
    sum.power += original * original;
  }
  return sum;
}

float frozen_scale(KvFormat format, std::span<const float> x) {
  const KvFormatInfo& info = kv_format_info(format);
  if (!info.scaled) return 1;
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::abs(v));
  const float number = info.header == KvHeader::kGroupScales ? kLargestE4m3 * kLargestE2m1 : kLargestE4m3;
  return largest > 0 ? kHeadroom * largest / number : 1;
}

void round_trip(KvFormat format, KvSide side, std::uint32_t head_dim, const KvHeadParams& params,
                std::span<const float> x, std::span<float> back) {
  expects(x.size() == back.size() && head_dim != 0 && x.size() % head_dim == 0,
          "round_trip: not whole vectors of head_dim");
  std::vector<std::byte> bytes(kv_head_stripe_bytes(format, kBlock, head_dim));
  KvStripe stripe(format, side, kBlock, head_dim, bytes);
  std::vector<float> y(head_dim);
  const std::size_t count = x.size() / head_dim;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const auto held = static_cast<std::uint32_t>(std::min<std::size_t>(kBlock, count - first));
    // All of a block first: formats whose tokens share bytes are read as they are in a cache.
    for (std::uint32_t token = 0; token < held; ++token) {
      stripe.encode(token, params, x.subspan((first + token) * head_dim, head_dim));
    }
    for (std::uint32_t token = 0; token < held; ++token) {
      const std::span<float> to = back.subspan((first + token) * head_dim, head_dim);
      stripe.decode(token, params, y);
      if (kv_format_info(format).rotated) {
        unrotate(params, y, to);
      } else {
        std::copy(y.begin(), y.end(), to.begin());
      }
    }
  }
}

AttentionReference::AttentionReference(const AttentionInput& input) : input_(input) {
  const std::size_t dim = input.head_dim;
  expects(dim != 0 && !input.queries.empty() && !input.keys.empty() && input.queries.size() % dim == 0 &&
              input.keys.size() % dim == 0 && input.keys.size() == input.values.size(),
          "attention: not whole vectors of head_dim, or keys without a value each");
  num_queries_ = input.queries.size() / dim;
  num_keys_ = input.keys.size() / dim;
  visible_.assign(input.visible.begin(), input.visible.end());
  if (visible_.empty()) visible_.assign(num_queries_, {0, static_cast<std::uint32_t>(num_keys_)});
  expects(visible_.size() == num_queries_, "attention: a range of keys a query");
  for (const KeyRange& range : visible_) {
    expects(range.first < range.end && range.end <= num_keys_, "attention: a query without keys");
  }
  scores_.resize(num_queries_ * num_keys_);
  weights_.resize(scores_.size());
  log_totals_.resize(num_queries_);
  outputs_.resize(num_queries_ * dim);
  for (std::size_t query = 0; query < num_queries_; ++query) {
    const std::span<double> scores = std::span(scores_).subspan(query * num_keys_, num_keys_);
    const std::span<double> weights = std::span(weights_).subspan(query * num_keys_, num_keys_);
    log_totals_[query] = score(query, input_.keys, scores);
    for (std::size_t key = visible_[query].first; key < visible_[query].end; ++key) {
      weights[key] = std::exp(scores[key] - log_totals_[query]);
    }
    output(query, weights, input_.values, std::span(outputs_).subspan(query * dim, dim));
  }
}

double AttentionReference::score(std::size_t query, std::span<const float> keys,
                                 std::span<double> scores) const {
  const std::size_t dim = input_.head_dim;
  const KeyRange range = visible_[query];
  const float* q = &input_.queries[query * dim];
  for (std::size_t key = range.first; key < range.end; ++key) {
    scores[key] = input_.scale * dot(q, &keys[key * dim], dim);
  }
  double largest = scores[range.first];
  for (std::size_t key = range.first; key < range.end; ++key) largest = std::max(largest, scores[key]);
  double total = 0;
  for (std::size_t key = range.first; key < range.end; ++key) total += std::exp(scores[key] - largest);
  return largest + std::log(total);
}

void AttentionReference::output(std::size_t query, std::span<const double> weights,
                                std::span<const float> values, std::span<double> sum) const {
  const std::size_t dim = input_.head_dim;
  std::fill(sum.begin(), sum.end(), 0.0);
  for (std::size_t key = visible_[query].first; key < visible_[query].end; ++key) {
    const double weight = weights[key];
    const float* value = &values[key * dim];
    for (std::size_t i = 0; i < dim; ++i) sum[i] += weight * static_cast<double>(value[i]);
  }
}

AttentionReference::Keys AttentionReference::with_keys(std::span<const float> keys) const {
  expects(keys.size() == input_.keys.size(), "attention: as many other keys as there are");
  Keys result;
  result.weights.resize(weights_.size());
  std::vector<double> scores(num_keys_);
  double squares = 0;
  std::size_t count = 0;
  for (std::size_t query = 0; query < num_queries_; ++query) {
    const double log_total = score(query, keys, scores);
    const std::size_t row = query * num_keys_;
    for (std::size_t key = visible_[query].first; key < visible_[query].end; ++key) {
      const double difference = scores[key] - scores_[row + key];
      squares += difference * difference;
      result.weights[row + key] = std::exp(scores[key] - log_total);
      result.kl += weights_[row + key] * (log_total - log_totals_[query] - difference);
      ++count;
    }
  }
  result.logit_rmse = std::sqrt(squares / static_cast<double>(count));
  result.kl /= static_cast<double>(num_queries_);
  // Rounding may leave less than nothing of a difference that is none; NaN stays.
  if (result.kl < 0) result.kl = 0;
  return result;
}

SquaredError AttentionReference::output_error(std::span<const double> weights,
                                              std::span<const float> values) const {
  expects(weights.size() == weights_.size() && values.size() == input_.values.size(),
          "attention: as many other weights and values as there are");
  const std::size_t dim = input_.head_dim;
  SquaredError sum;
  std::vector<double> there(dim);
  for (std::size_t query = 0; query < num_queries_; ++query) {
    output(query, weights.subspan(query * num_keys_, num_keys_), values, there);
    for (std::size_t i = 0; i < dim; ++i) {
      const double exact = outputs_[query * dim + i];
      sum.error += (exact - there[i]) * (exact - there[i]);
      sum.power += exact * exact;
    }
  }
  return sum;
}

}  // namespace metrale::quant
