// SPDX-License-Identifier: Apache-2.0
// Few combinations of many axes in which every pair of values of two axes meets.
#pragma once

#include <cstddef>
#include <set>
#include <tuple>
#include <vector>

namespace metrale::kernels {

// Combinations as one index into each axis; `sizes` are the axes' numbers of values. Greedy: always the one
// that brings most new pairs, the first among equals.
[[nodiscard]] inline std::vector<std::vector<std::size_t>> all_pairs(const std::vector<std::size_t>& sizes) {
  std::vector<std::vector<std::size_t>> combinations{{}};
  for (const std::size_t size : sizes) {
    std::vector<std::vector<std::size_t>> longer;
    for (const auto& head : combinations) {
      for (std::size_t value = 0; value < size; ++value) {
        longer.push_back(head);
        longer.back().push_back(value);
      }
    }
    combinations = longer;
  }
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;
  const auto pairs_of = [](const std::vector<std::size_t>& combination) {
    std::vector<Pair> pairs;
    for (std::size_t a = 0; a < combination.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) pairs.emplace_back(a, combination[a], b, combination[b]);
    }
    return pairs;
  };
  std::set<Pair> missing;
  for (const auto& combination : combinations) {
    for (const Pair& pair : pairs_of(combination)) missing.insert(pair);
  }
  std::vector<std::vector<std::size_t>> chosen;
  while (!missing.empty()) {
    std::size_t most = 0;
    const std::vector<std::size_t>* best = nullptr;
    for (const auto& combination : combinations) {
      std::size_t fresh = 0;
      for (const Pair& pair : pairs_of(combination)) fresh += missing.count(pair);
      if (fresh > most) most = fresh, best = &combination;
    }
    for (const Pair& pair : pairs_of(*best)) missing.erase(pair);
    chosen.push_back(*best);
  }
  return chosen;
}

}  // namespace metrale::kernels
