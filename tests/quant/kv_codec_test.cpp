// SPDX-License-Identifier: Apache-2.0
// What the formats mean: where their bits lie, what they lose, and what becomes of numbers that are none.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/quant/hadamard.h>
#include <metrale/quant/kv_codec.h>
#include <metrale/quant/turbo_layout.h>

namespace metrale::quant {
namespace {

constexpr std::uint32_t kHeadDims[] = {64, 80, 96, 128, 192, 256, 512};
constexpr KvSide kSides[] = {KvSide::kKey, KvSide::kValue};
constexpr KvFormat kTurboRowFormats[] = {KvFormat::kTurbo4, KvFormat::kTurbo3, KvFormat::kTurbo2};

// A stripe of one head, poisoned as fresh memory is.
class Stripe {
 public:
  Stripe(KvFormat format, KvSide side, std::uint32_t head_dim, std::uint32_t block_size = 16)
      : bytes_(kv_head_stripe_bytes(format, block_size, head_dim), std::byte{0xFF}),
        stripe_(format, side, block_size, head_dim, bytes_),
        head_dim_(head_dim) {}

  std::vector<float> through(std::span<const float> x, const KvHeadParams& params = {},
                             std::uint32_t token = 5) {
    stripe_.encode(token, params, x);
    return read(params, token);
  }
  std::vector<float> read(const KvHeadParams& params, std::uint32_t token) const {
    std::vector<float> y(head_dim_);
    stripe_.decode(token, params, y);
    return y;
  }
  KvStripe& operator*() { return stripe_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  KvStripe stripe_;
  std::uint32_t head_dim_;
};

// What comes back in the basis that went in.
std::vector<float> restored(KvFormat format, const std::vector<float>& y, const KvHeadParams& params = {}) {
  if (!kv_format_info(format).rotated) return y;
  std::vector<float> x(y.size());
  unrotate(params, y, x);
  return x;
}

std::vector<float> signs(std::uint32_t head_dim) {
  std::vector<float> diagonal(head_dim);
  for (std::uint32_t i = 0; i < head_dim; ++i) diagonal[i] = diagonal_sign(42, i);
  return diagonal;
}

TEST(Hadamard, IsTheTransformOfEachBlock) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const std::uint32_t head_dim : kHeadDims) {
    const std::uint32_t block = hadamard_block(head_dim);
    std::vector<float> x(head_dim);
    for (float& v : x) v = normal(random);
    std::vector<float> y = x;
    hadamard(y.data(), head_dim);
    for (std::uint32_t i = 0; i < head_dim; ++i) {
      double expected = 0;
      for (std::uint32_t j = 0; j < block; ++j) {
        const bool odd = __builtin_popcount(i % block & j) % 2 != 0;
        expected += (odd ? -1.0 : 1.0) * x[i / block * block + j];
      }
      EXPECT_NEAR(y[i], expected / std::sqrt(block), 1e-5) << head_dim << " at " << i;
    }
    hadamard(y.data(), head_dim);
    for (std::uint32_t i = 0; i < head_dim; ++i) EXPECT_NEAR(y[i], x[i], 1e-5);
  }
}

TEST(Hadamard, SignsAreBalancedAndDifferBySeed) {
  int sum = 0;
  int equal = 0;
  for (std::uint32_t i = 0; i < 512; ++i) {
    sum += diagonal_sign(42, i) > 0 ? 1 : -1;
    equal += diagonal_sign(42, i) == diagonal_sign(43, i) ? 1 : 0;
  }
  EXPECT_LT(std::abs(sum), 60);
  EXPECT_NEAR(equal, 256, 60);
}

TEST(TurboLayout, EveryBitOfABlockHasOnePlaceAndNoneIsLeftOver) {
  for (const KvFormat format : kTurboRowFormats) {
    for (const KvSide side : kSides) {
      for (const std::uint32_t head_dim : kHeadDims) {
        const std::uint32_t bits = kv_format_info(format).code_bits;
        std::vector<int> taken(16 * kv_row_bytes(format, head_dim) * 8);
        for (std::uint32_t token = 0; token < 16; ++token) {
          for (std::uint32_t dim = 0; dim < head_dim; ++dim) {
            for (std::uint32_t bit = 0; bit < bits; ++bit) {
              ++taken.at(turbo_code_bit(format, side, head_dim, token, dim, bit));
            }
          }
        }
        for (const int count : taken) ASSERT_EQ(count, 1) << to_string(format) << " " << head_dim;
      }
    }
  }
}

TEST(KvStripe, TokensDoNotTouchEachOther) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const KvFormatInfo& info : kKvFormats) {
    for (const KvSide side : kSides) {
      Stripe stripe(info.format, side, 96);
      std::vector<std::vector<float>> expected;
      std::vector<float> x(96);
      for (std::uint32_t token = 0; token < 16; ++token) {
        for (float& v : x) v = normal(random);
        Stripe alone(info.format, side, 96);
        expected.push_back(alone.through(x, {}, token));
        (*stripe).encode(token, {}, x);
      }
      for (std::uint32_t token = 0; token < 16; ++token) {
        EXPECT_EQ(stripe.read({}, token), expected[token]) << info.name << " token " << token;
      }
    }
  }
}

struct Gate {
  KvFormat format;
  double key;  // largest normalised mean square error, 1e-3
  double value;
  double least = 0;
};

// Gaussian vectors of 128.
TEST(KvStripe, LosesNoMoreThanTheFormatPagesSay) {
  const std::vector<float> diagonal = signs(128);
  const KvHeadParams params{.scale = 0.01F, .diagonal = diagonal, .mean = {}};
  for (const Gate& gate :
       {Gate{KvFormat::kBf16, 0.0029, 0.0029, 0.0027}, Gate{KvFormat::kFp16, 0.00005, 0.00005, 0.00004},
        Gate{KvFormat::kFp32, 0, 0}, Gate{KvFormat::kFp8, 0.72, 0.72, 0.68},
        Gate{KvFormat::kNvfp4, 9.1, 9.1, 8.9}, Gate{KvFormat::kNvfp4Searched, 6.7, 6.7, 6.5},
        Gate{KvFormat::kTurbo4, 3.93, 3.99, 3.8}, Gate{KvFormat::kTurbo3, 15.0, 15.1, 14.6},
        Gate{KvFormat::kTurbo2, 60.0, 60.0, 58.0}, Gate{KvFormat::kTurbo8, 0.68, 0.68, 0.63},
        Gate{KvFormat::kTurbo8i, 0.043, 0.043, 0.040}}) {
    for (const KvSide side : kSides) {
      std::mt19937 random(3);
      std::normal_distribution<float> normal;
      Stripe stripe(gate.format, side, 128);
      double error = 0;
      double power = 0;
      std::vector<float> x(128);
      for (int n = 0; n < 1500; ++n) {
        for (float& v : x) v = normal(random);
        const std::vector<float> back = restored(gate.format, stripe.through(x, params), params);
        for (std::size_t i = 0; i < x.size(); ++i) {
          error += std::pow(double{back[i]} - x[i], 2);
          power += std::pow(double{x[i]}, 2);
        }
      }
      const double nmse = 1e3 * error / power;
      EXPECT_LE(nmse, side == KvSide::kKey ? gate.key : gate.value) << to_string(gate.format);
      EXPECT_GE(nmse, gate.least) << to_string(gate.format);
      RecordProperty(std::string(to_string(gate.format)), std::to_string(nmse));
    }
  }
}

TEST(KvStripe, ZerosStayZerosInEveryFormat) {
  for (const KvFormatInfo& info : kKvFormats) {
    for (const std::uint32_t head_dim : kHeadDims) {
      for (const KvSide side : kSides) {
        Stripe stripe(info.format, side, head_dim);
        for (const float v : stripe.through(std::vector<float>(head_dim))) ASSERT_EQ(v, 0.0F) << info.name;
      }
    }
  }
}

TEST(KvStripe, MemoryThatWasNeverWrittenReadsAsNan) {
  for (const KvFormatInfo& info : kKvFormats) {
    for (const std::uint32_t head_dim : kHeadDims) {
      for (const KvSide side : kSides) {
        const Stripe stripe(info.format, side, head_dim);
        for (const float v : stripe.read({}, 3)) ASSERT_TRUE(std::isnan(v)) << info.name << " " << head_dim;
      }
    }
  }
}

// A record that holds what is no finite number is NaN as a whole where its numbers share a step, so that it
// can never pass for a result.
TEST(KvStripe, WhatIsNotFiniteNeverBecomesAFiniteNumberUnnoticed) {
  for (const KvFormatInfo& info : kKvFormats) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      for (const KvSide side : kSides) {
        std::vector<float> x(128, 1.0F);
        x[77] = bad;
        Stripe stripe(info.format, side, 128);
        const std::vector<float> y = stripe.through(x);
        if (info.format == KvFormat::kFp8 && std::isinf(bad)) {
          EXPECT_EQ(y[77], std::copysign(448.0F, bad)) << "fp8 has no infinity";
        } else {
          EXPECT_FALSE(std::isfinite(y[77])) << info.name << " " << bad;
        }
        if (info.rotated) {
          for (const float v : y) EXPECT_TRUE(std::isnan(v)) << info.name;
        }
      }
    }
  }
}

TEST(KvStripe, KeepsItsErrorFromSmallToLargeNumbers) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const KvFormatInfo& info : kKvFormats) {
    for (const std::uint32_t head_dim : {64U, 80U, 96U, 128U}) {
      std::vector<float> x(head_dim);
      for (float& v : x) v = normal(random);
      for (const float sigma : {1e-4F, 1e-2F, 1.0F, 1e2F, 1e3F}) {
        std::vector<float> scaled = x;
        for (float& v : scaled) v *= sigma;
        const KvHeadParams params{.scale = 0.01F * sigma, .diagonal = {}, .mean = {}};
        Stripe stripe(info.format, KvSide::kKey, head_dim);
        const std::vector<float> back = restored(info.format, stripe.through(scaled, params));
        double error = 0;
        double power = 0;
        for (std::uint32_t i = 0; i < head_dim; ++i) {
          error += std::pow(double{back[i]} - scaled[i], 2);
          power += std::pow(double{scaled[i]}, 2);
        }
        EXPECT_LT(error / power, info.code_bits == 2   ? 0.11
                                 : info.code_bits == 3 ? 0.03
                                                       : 0.013)
            << info.name << " " << head_dim << " sigma " << sigma;
      }
    }
  }
}

TEST(KvStripe, SpikesOfTheRotatedBasisSurvive) {
  for (const KvFormat format : kTurboRowFormats) {
    for (const KvSide side : kSides) {
      std::vector<float> spike(128);
      spike[9] = 3.0F;
      std::vector<float> x(128);
      unrotate({}, spike, x);
      Stripe stripe(format, side, 128);
      const std::vector<float> y = stripe.through(x);
      double error = 0;
      for (std::size_t i = 0; i < 128; ++i) error += std::pow(double{y[i]} - spike[i], 2);
      EXPECT_LT(error / 9, format == KvFormat::kTurbo4   ? 0.005
                           : format == KvFormat::kTurbo3 ? 0.1
                                                         : 0.6)
          << to_string(format);
    }
  }
}

TEST(KvStripe, SubnormalNumbersAreZeroInRotatedFormats) {
  for (const KvFormatInfo& info : kKvFormats) {
    if (!info.rotated) continue;
    Stripe stripe(info.format, KvSide::kKey, 128);
    for (const float v : stripe.through(std::vector<float>(128, 1e-40F))) EXPECT_EQ(v, 0.0F) << info.name;
  }
}

TEST(KvStripe, MeanAndDiagonalComeBack) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(128);
  std::vector<float> diagonal = signs(128);
  std::vector<float> mean(128);
  for (std::size_t i = 0; i < 128; ++i) {
    mean[i] = 100 * normal(random);
    diagonal[i] *= 0.5F + std::abs(normal(random));
    x[i] = mean[i] + normal(random);
  }
  const KvHeadParams params{.scale = 1, .diagonal = diagonal, .mean = mean};
  Stripe stripe(KvFormat::kTurbo8i, KvSide::kKey, 128);
  const std::vector<float> back = restored(KvFormat::kTurbo8i, stripe.through(x, params), params);
  for (std::size_t i = 0; i < 128; ++i) EXPECT_NEAR(back[i], x[i], 0.2F) << i;
}

TEST(KvStripe, RefusesWhatTheFormatHasNoBytesFor) {
  std::vector<std::byte> bytes(1 << 16);
  EXPECT_THROW(KvStripe(KvFormat::kTurbo4, KvSide::kKey, 16, 32, bytes), InvalidArgument);
  EXPECT_THROW(KvStripe(KvFormat::kTurbo4, KvSide::kKey, 16, 112, bytes), InvalidArgument);
  EXPECT_THROW(KvStripe(KvFormat::kNvfp4, KvSide::kKey, 16, 40, bytes), InvalidArgument);
  EXPECT_THROW(KvStripe(KvFormat::kBf16, KvSide::kKey, 16, 64, bytes), InvalidArgument) << "of another size";
}

}  // namespace
}  // namespace metrale::quant
