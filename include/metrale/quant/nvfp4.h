// SPDX-License-Identifier: Apache-2.0
// nvfp4: sixteen E2M1 numbers and an E4M3 scale, over an FP32 scale that many groups share. By definition;
// kernels do the same in vectors. Plain C++20, usable on host and device; no fused multiply-add.
#pragma once

#include <bit>
#include <cstdint>

#include <metrale/quant/float_convert.h>
#include <metrale/quant/kv_format.h>
#include <metrale/quant/pairwise_sum.h>

namespace metrale::quant {

// Bit 3 is the sign; 0, 0.5, 1, 1.5, 2, 3, 4, 6.
[[nodiscard]] constexpr float e2m1_to_float(std::uint32_t code) {
  const std::uint32_t exponent = (code >> 1) & 3U;
  const std::uint32_t mantissa = code & 1U;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0.5F
                                        : static_cast<float>((2 + mantissa) << (exponent - 1)) * 0.5F;
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

// Nearest, ties to the even code; what is larger than 6 becomes 6. `value` is a number.
[[nodiscard]] constexpr std::uint32_t float_to_e2m1(float value) {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(value) >> 31 << 3;
  const float magnitude = sign != 0 ? -value : value;
  // Bounds between codes; a tie goes to the even one of the two.
  std::uint32_t code = 0;
  code += magnitude > 0.25F ? 1U : 0U;
  code += magnitude >= 0.75F ? 1U : 0U;
  code += magnitude > 1.25F ? 1U : 0U;
  code += magnitude >= 1.75F ? 1U : 0U;
  code += magnitude > 2.5F ? 1U : 0U;
  code += magnitude >= 3.5F ? 1U : 0U;
  code += magnitude > 5.0F ? 1U : 0U;
  return sign | code;
}

inline constexpr std::uint8_t kNvfp4Nan = 0x7F;  // scale of a group that holds what is no finite number

// The group's codes for a scale code.
constexpr void nvfp4_codes(const float* x, std::uint8_t scale_code, float scale, std::uint8_t* codes) {
  const float step = e4m3_to_float(scale_code) * scale;
  const float inverse = step == 0 ? 0.0F : 1.0F / step;
  for (std::uint32_t i = 0; i < kKvScaleGroup; ++i) {
    codes[i] = static_cast<std::uint8_t>(float_to_e2m1(x[i] * inverse));
  }
}

[[nodiscard]] constexpr float nvfp4_error(const float* x, std::uint8_t scale_code, float scale) {
  std::uint8_t codes[kKvScaleGroup] = {};
  nvfp4_codes(x, scale_code, scale, codes);
  const float step = e4m3_to_float(scale_code) * scale;
  float squares[kKvScaleGroup] = {};
  for (std::uint32_t i = 0; i < kKvScaleGroup; ++i) {
    const float error = x[i] - e2m1_to_float(codes[i]) * step;
    squares[i] = error * error;
  }
  return pairwise_sum(squares, kKvScaleGroup);
}

// The scale code of a group of sixteen: its largest magnitude becomes 6; `searched` tries the codes from two
// below that to six above and takes the one of the least squared error.
[[nodiscard]] constexpr std::uint8_t nvfp4_scale(const float* x, float scale, bool searched) {
  float largest = 0;
  for (std::uint32_t i = 0; i < kKvScaleGroup; ++i) {
    const float magnitude = x[i] < 0 ? -x[i] : x[i];
    if (!(magnitude <= 0x1.FFFFFEp127F)) return kNvfp4Nan;
    if (magnitude > largest) largest = magnitude;
  }
  const std::uint8_t plain = float_to_e4m3(largest / 6.0F / scale);
  if (!searched) return plain;
  std::uint8_t best = plain;
  float least = nvfp4_error(x, plain, scale);
  for (int offset = -2; offset <= 6; ++offset) {
    const int code = int{plain} + offset;
    if (code < 1 || code > 0x7E) continue;
    const float error = nvfp4_error(x, static_cast<std::uint8_t>(code), scale);
    if (error >= least) continue;
    least = error;
    best = static_cast<std::uint8_t>(code);
  }
  return best;
}

}  // namespace metrale::quant
