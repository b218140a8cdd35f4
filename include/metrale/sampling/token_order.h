// SPDX-License-Identifier: Apache-2.0
// The one order of tokens: larger logit first, lower id first among equals. Greedy choice, top-k, top-p and
// the lists of log-probabilities all use it, as one integer comparison that a device can repeat.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>

namespace metrale::sampling {

[[nodiscard]] constexpr bool is_finite(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x7F800000u) != 0x7F800000u;
}

// Of two finite logits with their ids, the one that comes first in the order has the larger key; keys of
// different ids differ. -0 and +0 are equal logits.
[[nodiscard]] constexpr std::uint64_t token_key(float logit, std::uint32_t id) {
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0f);  // -0 + 0 is +0
  const std::uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (std::uint64_t{ascending} << 32) | (0xFFFFFFFFu - id);
}

[[nodiscard]] constexpr std::uint32_t token_of_key(std::uint64_t key) {
  return 0xFFFFFFFFu - static_cast<std::uint32_t>(key);
}

// The id of the largest finite logit, the lowest id among equals; nullopt where no logit is finite. NaN and
// both infinities never win. `logits.size()` fits 32 bits.
[[nodiscard]] std::optional<std::uint32_t> greedy_token(std::span<const float> logits);

}  // namespace metrale::sampling
