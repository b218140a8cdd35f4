// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <metrale/quant/float_convert.h>

namespace metrale::quant {
namespace {

// One 16-bit format under test.
struct Half {
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);
  int mantissa_bits;
  int exponent_bits;
};
constexpr Half kBf16{bf16_to_float, float_to_bf16, 7, 8};
constexpr Half kF16{f16_to_float, float_to_f16, 10, 5};

class FloatConvert : public testing::TestWithParam<Half> {
 protected:
  const Half& half() const { return GetParam(); }
  std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((1U << half().exponent_bits) - 1) << half().mantissa_bits);
  }
  bool is_nan(std::uint16_t bits) const { return (bits & 0x7FFFU) > infinity(); }
  // The value by the definition of the format, in double precision.
  double value(std::uint16_t bits) const {
    const int bias = (1 << (half().exponent_bits - 1)) - 1;
    const int exponent = (bits & 0x7FFF) >> half().mantissa_bits;
    const int mantissa = bits & ((1 << half().mantissa_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - half().mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << half().mantissa_bits), exponent - bias - half().mantissa_bits);
  }
  static float next_up(float x) { return std::nextafter(x, std::numeric_limits<float>::infinity()); }
  static float next_down(float x) { return std::nextafter(x, -std::numeric_limits<float>::infinity()); }
};

TEST_P(FloatConvert, WidensEveryValueExactly) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float wide = half().widen(bits);
    if (is_nan(bits)) {
      ASSERT_TRUE(std::isnan(wide)) << i;
    } else if ((bits & 0x7FFFU) == infinity()) {
      ASSERT_TRUE(std::isinf(wide)) << i;
    } else {
      ASSERT_EQ(double{wide}, value(bits)) << i;
    }
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000U) != 0) << i;
  }
}

TEST_P(FloatConvert, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    if (is_nan(bits)) continue;
    ASSERT_EQ(half().narrow(half().widen(bits)), bits) << i;
  }
}

TEST_P(FloatConvert, NanStaysAQuietNanOfItsSign) {
  const auto quiet = static_cast<std::uint16_t>(1U << (half().mantissa_bits - 1));
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    if (!is_nan(bits)) continue;
    const std::uint16_t back = half().narrow(half().widen(bits));
    ASSERT_TRUE(is_nan(back)) << i;
    ASSERT_NE(back & quiet, 0) << i;
    ASSERT_EQ(back & 0x8000U, bits & 0x8000U) << i;
  }
  // A payload in the lowest bits only must not round to infinity.
  EXPECT_TRUE(is_nan(half().narrow(std::bit_cast<float>(0x7F800001U))));
  EXPECT_TRUE(is_nan(half().narrow(std::bit_cast<float>(0xFFFFFFFFU))));
}

// Around the midpoint of every two neighbours, subnormals included.
TEST_P(FloatConvert, RoundsToNearestWithTiesToEven) {
  for (std::uint32_t i = 0; i + 1 < infinity(); ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    const auto even = low % 2 == 0 ? low : high;
    // Exact: a float has room for one more bit (bf16 subnormals: floats lie as close).
    const auto middle = static_cast<float>((value(low) + value(high)) / 2);
    ASSERT_EQ(half().narrow(middle), even) << i;
    ASSERT_EQ(half().narrow(next_down(middle)), low) << i;
    ASSERT_EQ(half().narrow(next_up(middle)), high) << i;
    ASSERT_EQ(half().narrow(-middle), even | 0x8000U) << i;
    ASSERT_EQ(half().narrow(-next_down(middle)), low | 0x8000U) << i;
    ASSERT_EQ(half().narrow(-next_up(middle)), high | 0x8000U) << i;
  }
}

TEST_P(FloatConvert, OverflowsToInfinityFromHalfAStepBeyondTheLargest) {
  const auto largest = static_cast<std::uint16_t>(infinity() - 1);
  const double step = value(largest) - value(static_cast<std::uint16_t>(largest - 1));
  const auto limit = static_cast<float>(value(largest) + step / 2);
  EXPECT_EQ(half().narrow(next_down(limit)), largest);
  EXPECT_EQ(half().narrow(limit), infinity());
  EXPECT_EQ(half().narrow(-limit), infinity() | 0x8000U);
  EXPECT_EQ(half().narrow(std::numeric_limits<float>::infinity()), infinity());
  EXPECT_EQ(half().narrow(std::numeric_limits<float>::max()), infinity());
}

TEST_P(FloatConvert, ZeroKeepsItsSign) {
  EXPECT_EQ(half().narrow(0.0F), 0);
  EXPECT_EQ(half().narrow(-0.0F), 0x8000U);
  EXPECT_EQ(half().narrow(-std::numeric_limits<float>::denorm_min()), 0x8000U);
}

INSTANTIATE_TEST_SUITE_P(Formats, FloatConvert, testing::Values(kBf16, kF16),
                         [](const testing::TestParamInfo<Half>& format) {
                           return format.param.mantissa_bits == 7 ? "Bf16" : "F16";
                         });

static_assert(float_to_bf16(1.0F) == 0x3F80 && bf16_to_float(0xC040) == -3.0F);
static_assert(float_to_f16(1.0F) == 0x3C00 && f16_to_float(0xC200) == -3.0F &&
              float_to_f16(65504.0F) == 0x7BFF);

TEST(E4m3, EveryCodeIsWhatTheFormatSays) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    const unsigned exponent = (code >> 3) & 15U;
    const unsigned mantissa = code & 7U;
    if ((code & 0x7FU) == 0x7FU) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double magnitude =
        exponent == 0 ? mantissa * 0x1p-9 : std::ldexp(8.0 + mantissa, static_cast<int>(exponent) - 10);
    EXPECT_EQ(value, (code & 0x80U) != 0 ? -magnitude : magnitude) << code;
    EXPECT_EQ(std::signbit(value), (code & 0x80U) != 0) << code;
  }
}

TEST(E4m3, EveryValueSurvivesTheRoundTripAndNanStaysNan) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    ASSERT_EQ(float_to_e4m3(e4m3_to_float(bits)), bits) << code;
  }
  EXPECT_EQ(float_to_e4m3(std::bit_cast<float>(0x7F800001U)), 0x7F);
  EXPECT_EQ(float_to_e4m3(std::bit_cast<float>(0xFFFFFFFFU)), 0xFF);
}

TEST(E4m3, RoundsToNearestWithTiesToEven) {
  for (unsigned code = 0; code < 0x7E; ++code) {
    const auto low = static_cast<std::uint8_t>(code);
    const auto high = static_cast<std::uint8_t>(code + 1);
    const auto even = low % 2 == 0 ? low : high;
    const float middle = (e4m3_to_float(low) + e4m3_to_float(high)) / 2;  // exact
    const float below = std::nextafter(middle, 0.0F);
    const float above = std::nextafter(middle, 1000.0F);
    ASSERT_EQ(float_to_e4m3(middle), even) << code;
    ASSERT_EQ(float_to_e4m3(below), low) << code;
    ASSERT_EQ(float_to_e4m3(above), high) << code;
    ASSERT_EQ(float_to_e4m3(-middle), even | 0x80) << code;
    ASSERT_EQ(float_to_e4m3(-below), low | 0x80) << code;
    ASSERT_EQ(float_to_e4m3(-above), high | 0x80) << code;
  }
}

// Every float with the seven upper bits of a mantissa, against a search for the nearest code.
TEST(E4m3, EveryBf16ValueGoesToTheNearestCode) {
  for (std::uint32_t i = 0; i < 0x7F80; ++i) {
    const float value = bf16_to_float(static_cast<std::uint16_t>(i));
    unsigned best = 0;
    for (unsigned code = 1; code < 0x7F; ++code) {
      const double distance =
          std::abs(double{value} - double{e4m3_to_float(static_cast<std::uint8_t>(code))});
      const double least = std::abs(double{value} - double{e4m3_to_float(static_cast<std::uint8_t>(best))});
      if (distance < least || (distance == least && code % 2 == 0)) best = code;
    }
    ASSERT_EQ(float_to_e4m3(value), best) << i;
    ASSERT_EQ(float_to_e4m3(-value), best | 0x80) << i;
  }
}

TEST(E4m3, WhatIsTooLargeSaturates) {
  EXPECT_EQ(float_to_e4m3(448.0F), 0x7E);
  EXPECT_EQ(float_to_e4m3(464.0F), 0x7E);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::max()), 0x7E);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::infinity()), 0x7E);
  EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
}

static_assert(float_to_e4m3(1.0F) == 0x38 && float_to_e4m3(-2.0F) == 0xC0);

}  // namespace
}  // namespace metrale::quant
