// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include <metrale/base/checked.h>

namespace metrale {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, ProductThatFitsIsReturned) {
  EXPECT_EQ(checked_mul(3, 5, 7U), 105U);
}

TEST(Checked, ProductThatWrapsThrows) {
  EXPECT_THROW((void)checked_mul(kMax, 2), InvalidArgument);
}

TEST(Checked, SumThatWrapsThrows) {
  EXPECT_THROW((void)checked_add(kMax, 1), InvalidArgument);
}

TEST(Checked, TryMulIsEmptyOnOverflow) {
  EXPECT_FALSE(try_mul<std::uint32_t>(1U << 31, 2).has_value());
  EXPECT_EQ(try_mul<std::uint32_t>(6, 7).value(), 42U);
}

TEST(Checked, CeilDivDoesNotWrapNearTheMaximum) {
  EXPECT_EQ(ceil_div(kMax, std::uint64_t{2}), kMax / 2 + 1);
}

TEST(Checked, NarrowRefusesWhatDoesNotFit) {
  EXPECT_EQ((narrow<std::uint8_t>(255, "value")), 255);
  EXPECT_THROW((void)(narrow<std::uint8_t>(256, "value")), InvalidArgument);
  EXPECT_THROW((void)(narrow<std::uint32_t>(-1, "value")), InvalidArgument);
}

}  // namespace
}  // namespace metrale
