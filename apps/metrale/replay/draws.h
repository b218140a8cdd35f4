// SPDX-License-Identifier: Apache-2.0
// Draws: random numbers for the trace generator. Integers only: the distributions of <random> and the
// logarithms of <cmath> may differ from one library to the next, and a trace shall not.
#pragma once

#include <bit>
#include <cstdint>

#include <metrale/base/clock.h>
#include <metrale/sampling/rng.h>

namespace metrale::replay {

struct LengthRange {
  std::uint32_t low = 1;
  std::uint32_t high = 1;  // inclusive
};

// -ln(bits / 2^64) in units of 2^-32, for bits > 0: the binary logarithm digit by digit, by squaring.
[[nodiscard]] constexpr std::uint64_t minus_log(std::uint64_t bits) {
  const auto zeros = static_cast<std::uint64_t>(std::countl_zero(bits));
  std::uint64_t mantissa = bits << zeros;  // [1, 2) in units of 2^-63
  std::uint64_t log2 = 0;
  for (int digit = 0; digit < 32; ++digit) {
    const std::uint64_t square = sampling::mul_high(mantissa, mantissa);  // [1, 4) in units of 2^-62
    const bool is_two_or_more = (square >> 63) != 0;
    log2 = (log2 << 1) | (is_two_or_more ? 1 : 0);
    mantissa = is_two_or_more ? square : square << 1;
  }
  const std::uint64_t minus_log2 = ((zeros + 1) << 32) - log2;
  constexpr std::uint64_t kLn2 = 0xB172'17F7'D1CF'79AB;  // ln(2) * 2^64
  return sampling::mul_high(minus_log2, kLn2);
}

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}

  [[nodiscard]] std::uint64_t bits() { return sampling::noise_bits(seed_, next_++, kPurpose); }
  // [0, bound), bound > 0.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return sampling::uniform_below(bits(), bound); }
  [[nodiscard]] std::uint32_t in(LengthRange range) {
    return range.low + static_cast<std::uint32_t>(below(std::uint64_t{range.high} - range.low + 1));
  }
  // With a probability of `share` / 2^32.
  [[nodiscard]] bool chance(std::uint64_t share) { return (bits() >> 32) < share; }
  // Exponential, in whole microseconds: the time between two arrivals of a Poisson process. `mean` is below
  // 2^46 ns (19 hours).
  [[nodiscard]] Nanoseconds exponential(Nanoseconds mean) {
    const std::uint64_t factor = minus_log(bits() | 1);  // below 2^38
    const std::uint64_t time =
        sampling::mul_high(factor << 16, static_cast<std::uint64_t>(mean.count()) << 16);
    return Nanoseconds(static_cast<std::int64_t>(time / 1000 * 1000));
  }

 private:
  static constexpr std::uint32_t kPurpose = 0x44524157;  // "DRAW"
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

}  // namespace metrale::replay
