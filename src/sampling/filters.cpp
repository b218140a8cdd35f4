// SPDX-License-Identifier: Apache-2.0
#include "sampling/filters.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <metrale/base/assert.h>
#include <metrale/sampling/fixed_exp.h>
#include <metrale/sampling/token_order.h>

#include "sampling/row_passes.h"

namespace metrale::sampling {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::size_t kShortRun = 32;
constexpr std::size_t kFirstLook = 4096;

// best - logit in steps of 2^-19, at most 4095: integers, because their sums do not depend on the order.
std::uint32_t sigma_steps(float best, float logit) {
  const float gap = std::min(best - logit, 4095.0f);
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(gap * 0x1p19f));
}

std::uint64_t mass_of(std::span<const std::uint64_t> keys, std::span<const std::uint64_t> weights) {
  std::uint64_t mass = 0;
  for (const std::uint64_t key : keys) mass += weights[token_of_key(key)];
  return mass;
}

// Moves the `count` >= 1 largest keys to the front and returns the smallest of them.
std::uint64_t partition_top(std::size_t count, std::span<std::uint64_t> keys) {
  const auto last = keys.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(keys.begin(), last, keys.end(), std::greater<>());
  return *last;
}

// The keys of the finite logits that reach both bounds, in `scratch`.
std::span<std::uint64_t> collect_keys(std::span<const float> row, std::uint64_t lowest_key,
                                      std::span<const std::uint64_t> weights, std::uint64_t lowest_weight,
                                      std::span<std::uint64_t> scratch) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::uint64_t key = token_key(row[i], static_cast<std::uint32_t>(i));
    scratch[count] = key;
    count +=
        static_cast<std::size_t>(is_finite(row[i]) & (key >= lowest_key) & (weights[i] >= lowest_weight));
  }
  return scratch.first(count);
}

// A key that at least `count` tokens of a long row reach: the count-th best of its first tokens. 0 if
// unknown.
std::uint64_t lower_bound_of_top(std::size_t count, std::span<const float> row,
                                 std::span<std::uint64_t> scratch) {
  const std::size_t looked_at = std::max(kFirstLook, 4 * count);
  if (looked_at > row.size() / 2) return 0;
  for (std::size_t i = 0; i < looked_at; ++i) scratch[i] = token_key(row[i], static_cast<std::uint32_t>(i));
  return partition_top(count, scratch.first(looked_at));
}

// The key of the last token of the shortest prefix, in descending key order, that weighs at least `target`.
// Halves the range around its median, so the expected work is linear.
std::uint64_t key_reaching(std::uint64_t target, std::span<std::uint64_t> keys,
                           std::span<const std::uint64_t> weights) {
  std::uint64_t mass = 0;
  while (keys.size() > kShortRun) {
    const std::size_t half = keys.size() / 2;
    partition_top(half, keys);
    const std::uint64_t upper_mass = mass_of(keys.first(half), weights);
    if (mass + upper_mass >= target) {
      keys = keys.first(half);
    } else {
      mass += upper_mass;
      keys = keys.subspan(half);
    }
  }
  std::sort(keys.begin(), keys.end(), std::greater<>());
  for (const std::uint64_t key : keys) {
    mass += weights[token_of_key(key)];
    if (mass >= target) return key;
  }
  return keys.back();
}

}  // namespace

void drop_below_sigma(float best, float n, std::span<float> row) {
  std::uint64_t count = 0;
  std::uint64_t sum = 0;
  std::uint64_t squares_low = 0;
  std::uint64_t squares_high = 0;
  for (const float logit : row) {
    if (!is_finite(logit)) continue;
    const std::uint64_t steps = sigma_steps(best, logit);
    const std::uint64_t square = steps * steps;
    ++count;
    sum += steps;
    squares_low += square & 0xFFFFFFFF;
    squares_high += square >> 32;
  }
  const Wide squares = (Wide{squares_high} << 32) + squares_low;
  const Wide variance_times_count_squared = Wide{count} * squares - Wide{sum} * sum;
  const double sigma =
      std::sqrt(static_cast<double>(variance_times_count_squared)) / static_cast<double>(count);
  const double largest_steps = static_cast<double>(n) * sigma;
  for (float& logit : row) {
    if (is_finite(logit) && sigma_steps(best, logit) > largest_steps) logit = kExcluded;
  }
}

std::uint64_t lowest_kept_key(std::span<const float> row, std::span<const std::uint64_t> weights,
                              std::uint64_t total, std::uint32_t top_k, float top_p,
                              std::span<std::uint64_t> scratch) {
  const bool limits_count = top_k != 0 && top_k < row.size();
  const bool limits_mass = top_p < 1.0f;
  if (!limits_count && !limits_mass) return 0;

  std::uint64_t lowest = 0;
  std::span<std::uint64_t> keys;
  if (limits_count) {
    keys = collect_keys(row, lower_bound_of_top(top_k, row, scratch), weights, 0, scratch);
    if (top_k <= keys.size()) {
      lowest = partition_top(top_k, keys);
      keys = keys.first(top_k);
      total = mass_of(keys, weights);
    }
  } else {
    // Tokens lighter than this weigh less than 1 - top_p together: the prefix ends before them.
    const std::uint64_t rest = total - mass_of_share(total, to_share(top_p));
    keys = collect_keys(row, 0, weights, rest / row.size(), scratch);
  }
  if (limits_mass) lowest = key_reaching(mass_of_share(total, to_share(top_p)), keys, weights);
  return lowest;
}

std::uint64_t drop_below(std::uint64_t lowest_key, std::uint64_t lowest_weight, std::span<float> row,
                         std::span<std::uint64_t> weights) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::uint64_t key = token_key(row[i], static_cast<std::uint32_t>(i));
    const bool drops = (key < lowest_key) | (weights[i] < lowest_weight);
    row[i] = drops ? kExcluded : row[i];
    weights[i] = drops ? 0 : weights[i];
    total += weights[i];
  }
  return total;
}

std::uint32_t token_at(std::uint64_t target, std::span<const std::uint64_t> weights) {
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    cumulative += weights[i];
    if (cumulative > target) return static_cast<std::uint32_t>(i);
  }
  METRALE_ASSERT(false && "the target lies beyond the weights");
  return static_cast<std::uint32_t>(weights.size() - 1);
}

}  // namespace metrale::sampling
