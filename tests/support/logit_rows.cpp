// SPDX-License-Identifier: Apache-2.0
#include "support/logit_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <metrale/base/error.h>

namespace metrale::test {

double log_sum_exp(std::span<const float> row) {
  const double peak = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit) - peak);
  return peak + std::log(sum);
}

double project(std::span<const float> row, std::uint32_t projection) {
  const std::uint64_t base = std::uint64_t{projection} << 32;
  double sum = 0;
  for (std::size_t token = 0; token < row.size(); ++token) {
    const bool minus = (mix64(base + token) >> 63) != 0;
    sum += minus ? -static_cast<double>(row[token]) : static_cast<double>(row[token]);
  }
  return sum / std::sqrt(static_cast<double>(row.size()));
}

double bucket_kl(const StoredRow& reference, std::span<const float> row) {
  const double total = log_sum_exp(row);
  std::vector<float> rest(row.begin(), row.end());
  double kl = 0;
  for (std::size_t i = 0; i < reference.top_ids.size(); ++i) {
    const std::uint16_t id = reference.top_ids[i];
    expects(id < row.size(), "a stored id lies outside of the row");
    const double log_p = static_cast<double>(reference.top_logits[i]) - reference.log_sum_exp;
    kl += std::exp(log_p) * (log_p - (static_cast<double>(row[id]) - total));
    rest[id] = -std::numeric_limits<float>::infinity();
  }
  const double log_p = static_cast<double>(reference.rest_log_sum_exp) - reference.log_sum_exp;
  return kl + std::exp(log_p) * (log_p - (log_sum_exp(rest) - total));
}

double max_top_difference(const StoredRow& reference, std::span<const float> row) {
  double largest = 0;
  for (std::size_t i = 0; i < reference.top_ids.size(); ++i) {
    const std::uint16_t id = reference.top_ids[i];
    expects(id < row.size(), "a stored id lies outside of the row");
    largest = std::max(largest, std::abs(static_cast<double>(row[id]) - reference.top_logits[i]));
  }
  return largest;
}

std::uint32_t top_id(std::span<const float> row) {
  return static_cast<std::uint32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace metrale::test
