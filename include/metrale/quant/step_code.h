// SPDX-License-Identifier: Apache-2.0
// The step of a turbo record: a non-negative number in as many bits as the record has groups of eight
// dimensions. 16 bits are a bfloat16 with its sign clear; fewer bits n are a small float of n / 2 + 1
// exponent bits and n / 2 - 1 mantissa bits, with subnormals, and with NaN where every exponent bit is set.
// Plain C++20, usable on host and device.
#pragma once

#include <bit>
#include <cstdint>

#include <metrale/quant/float_convert.h>

namespace metrale::quant {

// `bits` is 8, 10, 12 or 16.
struct StepCode {
  std::uint32_t bits;

  [[nodiscard]] constexpr std::uint32_t mantissa_bits() const { return (bits / 2 - 1) & 7U; }
  // Of records of 64, 80 and 96 dimensions 20, 36 and 68: steps from 1e-6 to 1e3 and beyond.
  [[nodiscard]] constexpr std::uint32_t bias() const { return bits == 16 ? 127 : (1U << (bits / 2)) + 4; }
  [[nodiscard]] constexpr std::uint32_t nan() const { return (1U << bits) - 1; }
  // The largest code that is a number.
  [[nodiscard]] constexpr std::uint32_t largest() const {
    return bits == 16 ? 0x7F7FU : (((1U << (bits / 2 + 1)) - 1) << mantissa_bits()) - 1;
  }

  // Nearest, ties to even; what is larger than the largest becomes it. `step` is a number and not negative.
  [[nodiscard]] constexpr std::uint32_t encode(float step) const {
    const auto word = std::bit_cast<std::uint32_t>(step);
    const std::uint32_t shift = 23 - mantissa_bits();
    const std::uint32_t rebase = (127 - bias()) << 23;
    if (word < rebase + (1U << 23)) {  // subnormal in the code: a multiple of its smallest
      const float unit = std::bit_cast<float>((127 + bias() - 1 + mantissa_bits()) << 23);
      constexpr float kToInteger = 0x1p23F;
      if (bits != 16) return static_cast<std::uint32_t>(step * unit + kToInteger - kToInteger);
    }
    const std::uint32_t code = (word - rebase + (1U << (shift - 1)) - 1 + ((word >> shift) & 1U)) >> shift;
    return code > largest() ? largest() : code;
  }

  [[nodiscard]] constexpr float decode(std::uint32_t code) const {
    if (bits == 16) return bf16_to_float(static_cast<std::uint16_t>(code));
    if (code > largest()) return std::bit_cast<float>(0x7FC00000U);
    const std::uint32_t shift = 23 - mantissa_bits();
    if (code >> mantissa_bits() != 0) return std::bit_cast<float>((code << shift) + ((127 - bias()) << 23));
    const float unit = std::bit_cast<float>((127 - bias() + 1 - mantissa_bits()) << 23);
    return static_cast<float>(code) * unit;
  }
};

}  // namespace metrale::quant
