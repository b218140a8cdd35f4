// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <metrale/base/error.h>
#include <metrale/quant/kv_equaliser.h>

namespace metrale::quant {
namespace {

constexpr double kLeastShare = 1e-4;  // of the channel that has most

void check(std::uint32_t head_dim, std::span<const float> x) {
  expects(head_dim != 0 && !x.empty() && x.size() % head_dim == 0,
          "equaliser: no vectors, or not whole ones of head_dim");
}

// By channel: the mean of x, and the root of the mean of (x - about)^2.
std::vector<double> means(std::uint32_t head_dim, std::span<const float> x) {
  std::vector<double> mean(head_dim);
  for (std::size_t i = 0; i < x.size(); ++i) mean[i % head_dim] += x[i];
  for (double& m : mean) m /= static_cast<double>(x.size() / head_dim);
  return mean;
}

std::vector<double> spreads(std::uint32_t head_dim, std::span<const float> x, std::span<const double> about) {
  std::vector<double> spread(head_dim);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = x[i] - about[i % head_dim];
    spread[i % head_dim] += difference * difference;
  }
  double most = 0;
  for (double& s : spread) {
    s = std::sqrt(s / static_cast<double>(x.size() / head_dim));
    most = std::max(most, s);
  }
  for (double& s : spread) s = most > 0 ? std::max(s, kLeastShare * most) : 1;
  return spread;
}

}  // namespace

std::vector<float> KvEqualiser::key_diagonal(std::span<const float> signs) const {
  std::vector<float> diagonal(s.size());
  for (std::size_t i = 0; i < s.size(); ++i) diagonal[i] = signs[i] / s[i];
  return diagonal;
}

std::vector<float> KvEqualiser::query_diagonal(std::span<const float> signs) const {
  std::vector<float> diagonal(s.size());
  for (std::size_t i = 0; i < s.size(); ++i) diagonal[i] = signs[i] * s[i];
  return diagonal;
}

KvEqualiser make_equaliser(std::uint32_t head_dim, std::span<const float> keys,
                           std::span<const float> queries) {
  check(head_dim, keys);
  check(head_dim, queries);
  const std::vector<double> mean = means(head_dim, keys);
  const std::vector<double> of_keys = spreads(head_dim, keys, mean);
  const std::vector<double> of_queries = spreads(head_dim, queries, std::vector<double>(head_dim));
  KvEqualiser equaliser;
  for (std::uint32_t i = 0; i < head_dim; ++i) {
    equaliser.mean.push_back(static_cast<float>(mean[i]));
    equaliser.s.push_back(static_cast<float>(std::sqrt(of_keys[i] / of_queries[i])));
  }
  return equaliser;
}

}  // namespace metrale::quant
