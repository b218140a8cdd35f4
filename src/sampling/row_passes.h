// SPDX-License-Identifier: Apache-2.0
// The passes over whole rows that every token pays for.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace metrale::sampling {

inline constexpr float kExcluded = -std::numeric_limits<float>::infinity();

struct NonFiniteCounts {
  std::uint32_t all = 0;
  std::uint32_t minus_infinities = 0;
};

// Copies `logits` to `row`, which is as long, with kExcluded for every logit that is not finite.
NonFiniteCounts load_row(std::span<const float> logits, std::span<float> row);

// weights[i] = token_weight(row[i], best, temperature), bit for bit; returns their sum.
std::uint64_t weigh(std::span<const float> row, float best, float temperature,
                    std::span<std::uint64_t> weights);

}  // namespace metrale::sampling
