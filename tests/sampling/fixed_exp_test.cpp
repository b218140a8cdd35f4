// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include <metrale/sampling/fixed_exp.h>
#include <metrale/sampling/rng.h>

#include "sampling/row_passes.h"
#include "sampling/sampling_support.h"

namespace metrale::sampling {
namespace {

__extension__ using Wide = unsigned __int128;

static_assert(fixed_exp(0.0f) == kUnitWeight, "usable in constant expressions, as device code needs");

TEST(FixedExp, AgreesWithTheExponentialToTwentyBillionths) {
  for (float gap = 0.0f; gap < 31.0f; gap += 0.00037f) {
    const double exact = std::exp(-static_cast<double>(gap)) * 0x1p40;
    EXPECT_NEAR(static_cast<double>(fixed_exp(gap)), exact, exact * 2e-8 + 0.5001) << gap;
  }
}

TEST(FixedExp, ALargerGapNeverWeighsMore) {
  std::uint32_t first = 0;
  const std::uint32_t last = std::bit_cast<std::uint32_t>(33.0f);
  std::uint64_t previous = fixed_exp(0.0f);
  std::mt19937 generator(7);
  while (first < last) {  // runs of neighbouring floats, so that steps of one unit are seen
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t weight = fixed_exp(std::bit_cast<float>(first + static_cast<std::uint32_t>(i)));
      ASSERT_LE(weight, previous) << first + static_cast<std::uint32_t>(i);
      previous = weight;
    }
    first += static_cast<std::uint32_t>(200 + generator() % 200000);
  }
}

TEST(FixedExp, NegativeZeroIsAGapOfZero) {
  EXPECT_EQ(fixed_exp(-0.0f), kUnitWeight);
}

TEST(FixedExp, WhatIsNotAGapWeighsNothing) {
  for (const float gap : {kNan, -kNan, kInfinity, -kInfinity, -1.0f, -1e-30f, 32.0f, 1e30f}) {
    EXPECT_EQ(fixed_exp(gap), 0u) << gap;
  }
}

TEST(FixedExp, TheLastUnitOfWeightIsReachedByRounding) {
  EXPECT_EQ(fixed_exp(28.4f), 1u);
  EXPECT_EQ(fixed_exp(28.5f), 0u);
}

TEST(FixedExp, VectorAndScalarCodeGiveTheSameBits) {
  for (const std::size_t size : {1u, 7u, 8u, 9u, 31u, 1000u}) {
    Logits logits = random_logits(size, size, 8.0f);
    logits[size / 2] = -kInfinity;
    logits[size / 3] = kNan;
    logits[size - 1] = 20.0f;
    for (const float temperature : {1.0f, 0.7f, 3.0f, 1e-5f}) {
      std::vector<std::uint64_t> weights(size);

      const std::uint64_t total = weigh(logits, 20.0f, temperature, weights);

      std::uint64_t expected_total = 0;
      for (std::size_t i = 0; i < size; ++i) {
        EXPECT_EQ(weights[i], token_weight(logits[i], 20.0f, temperature)) << i;
        expected_total += weights[i];
      }
      EXPECT_EQ(total, expected_total);
    }
  }
}

TEST(MassOfShare, RoundsUpTheExactProduct) {
  std::mt19937_64 generator(11);
  for (int i = 0; i < 100000; ++i) {
    const std::uint64_t total = generator() >> (1 + generator() % 60);
    const std::uint64_t share = i % 100 == 0 ? kUnitShare : generator() % kUnitShare;
    const auto exact = static_cast<std::uint64_t>((Wide{total} * share + 0xFFFFFFFF) >> 32);
    ASSERT_EQ(mass_of_share(total, share), exact) << total << " " << share;
  }
}

TEST(MulHigh, IsTheUpperHalfOfTheProduct) {
  std::mt19937_64 generator(12);
  for (int i = 0; i < 100000; ++i) {
    const std::uint64_t a = generator() | (generator() % 4 == 0 ? 0xFFFFFFFF00000000 : 0);
    const std::uint64_t b = generator() | (generator() % 4 == 0 ? 0x00000000FFFFFFFF : 0);
    ASSERT_EQ(mul_high(a, b), static_cast<std::uint64_t>((Wide{a} * b) >> 64)) << a << " " << b;
  }
}

TEST(Noise, MatchesThePublishedPhiloxVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(philox4x32({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, {0xFFFFFFFF, 0xFFFFFFFF}),
            (PhiloxBlock{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
            (PhiloxBlock{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(Noise, EveryBitOfSeedPositionAndPurposeCounts) {
  const std::uint64_t noise = noise_bits(1, 2, 3);
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(noise_bits(1 ^ (std::uint64_t{1} << bit), 2, 3), noise) << bit;
    EXPECT_NE(noise_bits(1, 2 ^ (std::uint64_t{1} << bit), 3), noise) << bit;
  }
  for (int bit = 0; bit < 32; ++bit) EXPECT_NE(noise_bits(1, 2, 3u ^ (1u << bit)), noise) << bit;
}

TEST(Noise, EveryBitOfEveryWordVaries) {
  std::uint64_t ones = 0;
  std::uint64_t zeros = 0;
  for (std::uint64_t position = 0; position < 64; ++position) {
    ones |= noise_bits(5, position);
    zeros |= ~noise_bits(5, position);
  }
  EXPECT_EQ(ones, ~std::uint64_t{0});
  EXPECT_EQ(zeros, ~std::uint64_t{0});
}

TEST(UniformBelow, AHashOfAllOnesStaysBelowTheBound) {
  for (const std::uint64_t bound : {std::uint64_t{1}, kUnitWeight, kUnitWeight + 1, ~std::uint64_t{0}}) {
    EXPECT_EQ(uniform_below(~std::uint64_t{0}, bound), bound - 1);
    EXPECT_EQ(uniform_below(0, bound), 0u);
  }
}

TEST(UniformBelow, UsesMoreThanTwentyFourBits) {
  EXPECT_EQ(uniform_below(std::uint64_t{1} << 24, std::uint64_t{1} << 40), 1u);
  EXPECT_EQ(uniform_below((std::uint64_t{1} << 24) - 1, std::uint64_t{1} << 40), 0u);
}

}  // namespace
}  // namespace metrale::sampling
