// SPDX-License-Identifier: Apache-2.0
// The small number formats that KV codes are made of: every value goes to its nearest code.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/quant/float_convert.h>
#include <metrale/quant/nvfp4.h>
#include <metrale/quant/step_code.h>

namespace metrale::quant {
namespace {

// `value` gives the number of every code, rising from code 0; `encode` must give the nearest, the even one of
// two that are equally near.
template <class Value, class Encode>
void expect_nearest(std::uint32_t codes, const Value& value, const Encode& encode, const char* what) {
  for (std::uint32_t code = 0; code < codes; ++code) {
    ASSERT_EQ(encode(value(code)), code) << what;
    if (code + 1 == codes) break;
    const float middle = static_cast<float>((double{value(code)} + double{value(code + 1)}) / 2);
    ASSERT_EQ(double{middle} * 2, double{value(code)} + double{value(code + 1)}) << "the middle is exact";
    ASSERT_EQ(encode(middle), code % 2 == 0 ? code : code + 1) << what << " " << code;
    ASSERT_EQ(encode(std::nextafter(middle, 0.0F)), code) << what << " " << code;
    ASSERT_EQ(encode(std::nextafter(middle, HUGE_VALF)), code + 1) << what << " " << code;
  }
}

TEST(E5m2, EveryCodeIsNearestToItsNumbers) {
  expect_nearest(
      0x7C, [](std::uint32_t c) { return e5m2_to_float(static_cast<std::uint8_t>(c)); },
      [](float x) { return std::uint32_t{float_to_e5m2(x)}; }, "e5m2");
}

TEST(E5m2, KeepsSignInfinityAndNan) {
  EXPECT_EQ(float_to_e5m2(61439.996F), 0x7B);
  EXPECT_EQ(float_to_e5m2(61440.0F), 0x7C);
  EXPECT_EQ(float_to_e5m2(-HUGE_VALF), 0xFC);
  EXPECT_EQ(e5m2_to_float(0x7C), HUGE_VALF);
  EXPECT_EQ(float_to_e5m2(-1.5F), 0xBE);
  EXPECT_TRUE(std::isnan(e5m2_to_float(float_to_e5m2(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(E2m1, EveryCodeIsNearestToItsNumbers) {
  expect_nearest(
      8, [](std::uint32_t c) { return e2m1_to_float(c); }, [](float x) { return float_to_e2m1(x); }, "e2m1");
  EXPECT_EQ(float_to_e2m1(1e30F), 7U);
  EXPECT_EQ(float_to_e2m1(-5.5F), 15U);
  EXPECT_EQ(float_to_e2m1(-0.1F), 8U);
}

TEST(StepCode, EveryCodeIsNearestToItsNumbers) {
  for (const std::uint32_t bits : {8U, 10U, 12U, 16U}) {
    const StepCode coder{bits};
    expect_nearest(
        coder.largest() + 1, [&](std::uint32_t c) { return coder.decode(c); },
        [&](float x) { return coder.encode(x); }, "step");
  }
}

TEST(StepCode, SaturatesAndReadsAllOnesAsNan) {
  for (const std::uint32_t bits : {8U, 10U, 12U, 16U}) {
    const StepCode coder{bits};
    EXPECT_EQ(coder.encode(0x1p126F), bits == 16 ? coder.encode(0x1p126F) : coder.largest());
    EXPECT_EQ(coder.encode(std::numeric_limits<float>::max()), coder.largest()) << bits;
    EXPECT_TRUE(std::isnan(coder.decode(coder.nan()))) << bits;
    EXPECT_EQ(coder.decode(0), 0.0F);
    EXPECT_LT(coder.decode(1), 1e-6F) << "small steps are there";
    EXPECT_GT(coder.decode(coder.largest()), 1e3F) << "large steps are there";
  }
}

}  // namespace
}  // namespace metrale::quant
