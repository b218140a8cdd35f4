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
  for (double& s : spread) s = std::sqrt(s / static_cast<double>(x.size() / head_dim));
  return spread;
}

std::vector<double> not_too_small(std::span<const double> sizes) {
  const double most = sizes.empty() ? 0 : *std::ranges::max_element(sizes);
  std::vector<double> result;
  for (const double size : sizes) result.push_back(most > 0 ? std::max(size, kLeastShare * most) : 1);
  return result;
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

std::vector<float> equaliser_divisors(std::span<const double> stored, std::span<const double> met) {
  expects(stored.size() == met.size(), "equaliser: sizes of unequally many channels");
  const std::vector<double> of_stored = not_too_small(stored);
  const std::vector<double> of_met = not_too_small(met);
  std::vector<float> divisors;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    divisors.push_back(static_cast<float>(std::sqrt(of_stored[i] / of_met[i])));
  }
  return divisors;
}

KvEqualiser make_equaliser(std::uint32_t head_dim, std::span<const float> keys,
                           std::span<const float> queries) {
  check(head_dim, keys);
  check(head_dim, queries);
  const std::vector<double> mean = means(head_dim, keys);
  const std::vector<double> of_keys = spreads(head_dim, keys, mean);
  const std::vector<double> of_queries = spreads(head_dim, queries, std::vector<double>(head_dim));
  KvEqualiser equaliser{.mean = {}, .s = equaliser_divisors(of_keys, of_queries)};
  for (const double m : mean) equaliser.mean.push_back(static_cast<float>(m));
  return equaliser;
}

}  // namespace metrale::quant
