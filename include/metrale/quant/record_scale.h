// SPDX-License-Identifier: Apache-2.0
// turbo8 and turbo8i: a record of E4M3 or of 8-bit integers over one bfloat16 scale. By definition; kernels
// do the same in vectors. Plain C++20, usable on host and device; no fused multiply-add.
#pragma once

#include <cstdint>

#include <metrale/quant/float_convert.h>
#include <metrale/quant/kv_format.h>

namespace metrale::quant {

inline constexpr std::uint16_t kRecordScaleNan = 0xFFFF;

// The bfloat16 nearest to largest magnitude / 448 or / 127; NaN where the record holds what is no finite
// number. A scale that would be subnormal is zero, and so is the record.
[[nodiscard]] constexpr std::uint16_t record_scale(KvFormat format, const float* y, std::uint32_t dims) {
  float largest = 0;
  for (std::uint32_t i = 0; i < dims; ++i) {
    const float magnitude = y[i] < 0 ? -y[i] : y[i];
    if (!(magnitude <= 0x1.FFFFFEp127F)) return kRecordScaleNan;
    if (magnitude > largest) largest = magnitude;
  }
  const float scale = largest / (format == KvFormat::kTurbo8 ? kE4m3Largest : 127.0F);
  const std::uint16_t code = float_to_bf16(scale);
  return code < 0x0080 ? std::uint16_t{0} : code;
}

// Integers: nearest, ties to even, within -127 to 127.
[[nodiscard]] constexpr std::uint8_t record_code(KvFormat format, std::uint16_t scale, float y) {
  if (scale == kRecordScaleNan) return 0xFF;
  if (scale == 0) return 0;
  const float z = y * (1.0F / bf16_to_float(scale));
  if (format == KvFormat::kTurbo8) return float_to_e4m3(z);
  const float bounded = z > 127.0F ? 127.0F : z < -127.0F ? -127.0F : z;
  constexpr float kToInteger = 0x1.8p23F;
  return static_cast<std::uint8_t>(static_cast<std::int32_t>(bounded + kToInteger - kToInteger));
}

[[nodiscard]] constexpr float record_value(KvFormat format, std::uint16_t scale, std::uint8_t code) {
  const float level =
      format == KvFormat::kTurbo8 ? e4m3_to_float(code) : static_cast<float>(static_cast<std::int8_t>(code));
  return level * bf16_to_float(scale);
}

}  // namespace metrale::quant
