// SPDX-License-Identifier: Apache-2.0
// The filters between the edited logits and the draw. All decide by integers: token keys (token_order.h) and
// fixed-point weights (fixed_exp.h), so a device that repeats them keeps the same tokens.
#pragma once

#include <cstdint>
#include <span>

namespace metrale::sampling {

// Excludes (sets to -inf) the finite logits below best - n * sigma, where sigma is the population standard
// deviation of the finite logits.
void drop_below_sigma(float best, float n, std::span<float> row);

// The smallest key that survives top-k (0: off) and then top-p (1: off) over what top-k left; 0 where both
// keep every token. `total` is the sum of the weights; `scratch` has row.size() entries unless both are off.
[[nodiscard]] std::uint64_t lowest_kept_key(std::span<const float> row,
                                            std::span<const std::uint64_t> weights, std::uint64_t total,
                                            std::uint32_t top_k, float top_p,
                                            std::span<std::uint64_t> scratch);

// Excludes every token whose key or weight is smaller: its logit becomes -inf and its weight 0.
// Returns the sum of the weights left.
std::uint64_t drop_below(std::uint64_t lowest_key, std::uint64_t lowest_weight, std::span<float> row,
                         std::span<std::uint64_t> weights);

// The token at `target` < sum(weights): the first by id whose cumulative weight exceeds it.
[[nodiscard]] std::uint32_t token_at(std::uint64_t target, std::span<const std::uint64_t> weights);

}  // namespace metrale::sampling
