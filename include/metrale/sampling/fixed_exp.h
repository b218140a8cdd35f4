// SPDX-License-Identifier: Apache-2.0
// Probabilities as integers: a weight is exp(-gap) in units of 2^-40, and sums of weights do not depend on
// their order. Only integer arithmetic follows the first multiplication, so no contraction, vector width or
// fast-math switch can change a bit. Plain constexpr: nvcc takes it with --expt-relaxed-constexpr.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace metrale::sampling {

inline constexpr std::uint64_t kUnitWeight = std::uint64_t{1} << 40;  // the weight of the best token
inline constexpr std::uint64_t kUnitShare = std::uint64_t{1} << 32;   // a share of 1
inline constexpr float kLargestGap = 31.75f;                          // its weight is already 0

[[nodiscard]] constexpr std::uint32_t mul_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32);
}

// The high half of the 128-bit product.
[[nodiscard]] constexpr std::uint64_t mul_high(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kLow = 0xFFFFFFFF;
  const std::uint64_t middle = (a >> 32) * (b & kLow) + (((a & kLow) * (b & kLow)) >> 32);
  const std::uint64_t other = (a & kLow) * (b >> 32) + (middle & kLow);
  return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}

inline constexpr std::uint32_t kLog2E = 3098164009u;  // log2(e) * 2^31

// 2^-x on [0, 1]: minimax polynomial of degree 6 with p(0) = 1 and p(1) = 1/2, relative error 2.2e-9.
// Coefficients times 2^32 with alternating signs, from x^6 down to x. A function, because device code cannot
// see a constant array.
[[nodiscard]] constexpr std::array<std::uint32_t, 6> power_coefficients() {
  return {0x00071D97, 0x005375B2, 0x0273B221, 0x0E349A26, 0x3D7F5601, 0xB17215E1};
}

// round(2^40 * exp(-gap)) for gap >= 0 with a relative error of 2e-8 plus half a unit; 0 for NaN and negative
// gaps. fixed_exp(0) is exactly kUnitWeight, and a larger gap never weighs more (checked for every gap).
[[nodiscard]] constexpr std::uint64_t fixed_exp(float gap) {
  // As integers, NaN and negative floats are larger than every gap; adding 0 turns -0 into +0.
  const float bounded = std::bit_cast<float>(
      std::min(std::bit_cast<std::uint32_t>(gap + 0.0f), std::bit_cast<std::uint32_t>(kLargestGap)));
  // Steps of 2^-26: below 2^31, because vector units convert to signed integers only.
  const auto steps = static_cast<std::uint32_t>(static_cast<std::int32_t>(bounded * 0x1p26f));
  const std::uint64_t octaves = std::uint64_t{steps} * kLog2E;  // log2(e) * gap * 2^57
  const auto fraction = static_cast<std::uint32_t>(octaves >> 25);

  // Every partial result is positive, so unsigned Horner steps never wrap.
  std::uint32_t sum = 0;
  for (const std::uint32_t coefficient : power_coefficients()) sum = coefficient - mul_high(fraction, sum);
  const std::uint64_t power = (std::uint64_t{1} << 32) - mul_high(fraction, sum);

  return (((power << 9) >> (octaves >> 57)) + 1) >> 1;
}

// The weight of a logit under a temperature > 0, relative to the best logit of its row. 0 where `logit` is
// not finite. The subtraction comes first: both are rounded once, in fp32, on every device.
[[nodiscard]] constexpr std::uint64_t token_weight(float logit, float best, float temperature) {
  return fixed_exp((best - logit) / temperature);
}

// A probability in [0, 1] as a share: probability * 2^32, rounded down.
[[nodiscard]] constexpr std::uint64_t to_share(float probability) {
  return static_cast<std::uint64_t>(static_cast<double>(probability) * 0x1p32);
}

// ceil(total * share / 2^32): the mass that makes up `share` of `total`. Exact for share <= kUnitShare.
[[nodiscard]] constexpr std::uint64_t mass_of_share(std::uint64_t total, std::uint64_t share) {
  const std::uint64_t low = (total & 0xFFFFFFFF) * share;
  return (total >> 32) * share + ((low + 0xFFFFFFFF) >> 32);
}

}  // namespace metrale::sampling
