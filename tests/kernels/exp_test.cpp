// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/support/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/exp_test.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/math/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// data[i] = exp(data[i]); `count` is a multiple of 16.
void exp_all(float* data, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kVec) store_vec(exp_vec(load_vec(data + i)), data + i);
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {
namespace {

HWY_EXPORT(exp_all);

std::vector<float> exp_of(std::vector<float> x) {
  x.resize((x.size() + 15) / 16 * 16);
  HWY_DYNAMIC_DISPATCH(exp_all)(x.data(), x.size());
  return x;
}

// Floats of the whole range [-87, 88.72], a prime step apart in their order.
std::vector<float> samples() {
  std::vector<float> x;
  for (const float end : {87.0F, 88.72F}) {
    const float sign = end == 87.0F ? -1.0F : 1.0F;
    for (std::uint32_t bits = 0; bits <= std::bit_cast<std::uint32_t>(end); bits += 1009) {
      x.push_back(sign * std::bit_cast<float>(bits));
    }
  }
  return x;
}

TEST(Exp, ErrsByLessThanOneAndAHalfUnitsInTheLastPlace) {
  const auto x = samples();
  const auto y = exp_of(x);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double{x[i]});
    const auto nearest = static_cast<float>(exact);
    const double unit =
        double{std::nextafter(nearest, std::numeric_limits<float>::infinity())} - double{nearest};
    const double error = std::abs(double{y[i]} - exact) / unit;
    ASSERT_LT(error, 1.5) << "x " << x[i];
    worst = std::max(worst, error);
  }
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(Exp, HasTheEndsOfItsContract) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto y =
      exp_of({0.0F, -0.0F, -87.01F, -1000.0F, -inf, 88.73F, inf, std::numeric_limits<float>::quiet_NaN(),
              std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max(), -87.0F});
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], 0.0F);
  EXPECT_EQ(y[3], 0.0F);
  EXPECT_EQ(y[4], 0.0F);
  EXPECT_EQ(y[5], inf);
  EXPECT_EQ(y[6], inf);
  EXPECT_TRUE(std::isnan(y[7]));
  EXPECT_EQ(y[8], 0.0F);
  EXPECT_EQ(y[9], inf);
  EXPECT_GT(y[10], 1e-38F);
}

TEST(Exp, GivesTheSameBitsOnEveryInstructionSet) {
  const auto x = samples();
  const auto best = exp_of(x);
  const ForceAvx2 avx2;
  const auto narrow = exp_of(x);
  EXPECT_EQ(std::memcmp(best.data(), narrow.data(), best.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace metrale::kernels
#endif  // HWY_ONCE
