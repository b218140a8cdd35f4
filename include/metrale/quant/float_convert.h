// SPDX-License-Identifier: Apache-2.0
// Exact scalar conversions between float and the 16-bit formats, the 8-bit E4M3 and E5M2: round to nearest,
// ties to even, subnormals kept, overflow to infinity (E4M3, which has none: to its largest value), NaN stays
// NaN (quiet). Plain C++20, usable on host and device.
#pragma once

#include <bit>
#include <cstdint>

namespace metrale::quant {

[[nodiscard]] constexpr float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

[[nodiscard]] constexpr std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

[[nodiscard]] constexpr float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1F) {
    const std::uint32_t quiet = mantissa != 0 ? 0x00400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13) | quiet);
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in float.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

// OCP E4M3: bias 7, no infinity, 0x7F and 0xFF are NaN, largest 448.
[[nodiscard]] constexpr float e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
  const std::uint32_t exponent = (bits >> 3) & 0xFU;
  const std::uint32_t mantissa = bits & 0x7U;
  if (exponent == 0xF && mantissa == 0x7) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

inline constexpr float kE4m3Largest = 448.0F;

// Saturates: what is larger than 448, infinity too, becomes 448 of its sign.
[[nodiscard]] constexpr std::uint8_t float_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | 0x7FU);
  if (magnitude >= 0x43E00000U) return static_cast<std::uint8_t>(sign | 0x7EU);
  if (magnitude >= 0x3C800000U) {  // normal, from 2^-6 on: drop 20 bits
    const std::uint32_t rebased = magnitude - (120U << 23);
    return static_cast<std::uint8_t>(sign | ((rebased + 0x7FFFFU + ((rebased >> 20) & 1U)) >> 20));
  }
  if (magnitude <= 0x3A800000U) return sign;  // at most half of the smallest subnormal: ties to even, zero
  const std::uint32_t shift = 141U - (magnitude >> 23);
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
  const std::uint32_t half = 1U << (shift - 1);
  return static_cast<std::uint8_t>(sign | ((mantissa + half - 1 + ((mantissa >> shift) & 1U)) >> shift));
}

[[nodiscard]] constexpr std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  // 65520 and above round to infinity.
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude >= 0x38800000U) {  // normal half: drop 13 bits
    const std::uint32_t rebased = magnitude - (112U << 23);
    return static_cast<std::uint16_t>(sign | ((rebased + 0x0FFFU + ((rebased >> 13) & 1U)) >> 13));
  }
  if (magnitude <= 0x33000000U) return sign;  // at most half of the smallest subnormal: ties to even, zero
  const std::uint32_t shift = 126U - (magnitude >> 23);
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t rounded = (mantissa + half - 1 + ((mantissa >> shift) & 1U)) >> shift;
  return static_cast<std::uint16_t>(sign | rounded);
}

// OCP E5M2: the upper byte of a half.
[[nodiscard]] constexpr float e5m2_to_float(std::uint8_t bits) {
  return f16_to_float(static_cast<std::uint16_t>(bits << 8));
}

[[nodiscard]] constexpr std::uint8_t float_to_e5m2(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | 0x7EU);
  if (magnitude >= 0x47700000U) return static_cast<std::uint8_t>(sign | 0x7CU);  // 61440 and above
  if (magnitude >= 0x38800000U) {                                                // normal: drop 21 bits
    const std::uint32_t rebased = magnitude - (112U << 23);
    return static_cast<std::uint8_t>(sign | ((rebased + 0xFFFFFU + ((rebased >> 21) & 1U)) >> 21));
  }
  if (magnitude <= 0x37000000U) return sign;  // at most half of the smallest subnormal: ties to even, zero
  const std::uint32_t shift = 134U - (magnitude >> 23);
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
  const std::uint32_t half = 1U << (shift - 1);
  return static_cast<std::uint8_t>(sign | ((mantissa + half - 1 + ((mantissa >> shift) & 1U)) >> shift));
}

}  // namespace metrale::quant
