// SPDX-License-Identifier: Apache-2.0
// Counter-based noise: a pure function of (seed, position, purpose), without state to share, save or replay.
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Plain constexpr.
#pragma once

#include <array>
#include <cstdint>

#include <metrale/sampling/fixed_exp.h>

namespace metrale::sampling {

using PhiloxBlock = std::array<std::uint32_t, 4>;

[[nodiscard]] constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::array<std::uint32_t, 2> key) {
  constexpr std::uint32_t kFirst = 0xD2511F53;
  constexpr std::uint32_t kSecond = 0xCD9E8D57;
  for (int round = 0; round < 10; ++round) {
    counter = {mul_high(kSecond, counter[2]) ^ counter[1] ^ key[0], kSecond * counter[2],
               mul_high(kFirst, counter[0]) ^ counter[3] ^ key[1], kFirst * counter[0]};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// What a number is drawn for. Different purposes at one position are independent.
inline constexpr std::uint32_t kDrawPurpose = 0;

// 64 uniform bits for one decision of the request with `seed` at absolute token position `position`.
[[nodiscard]] constexpr std::uint64_t noise_bits(std::uint64_t seed, std::uint64_t position,
                                                 std::uint32_t purpose = kDrawPurpose) {
  const PhiloxBlock block = philox4x32(
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), purpose, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return (std::uint64_t{block[1]} << 32) | block[0];
}

// Maps 64 uniform bits to an integer in [0, bound), bound > 0. All 64 bits count, and no input reaches
// `bound`.
[[nodiscard]] constexpr std::uint64_t uniform_below(std::uint64_t bits, std::uint64_t bound) {
  return mul_high(bits, bound);
}

}  // namespace metrale::sampling
