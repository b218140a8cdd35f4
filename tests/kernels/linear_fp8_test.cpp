// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/linear_fp8.h>

#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Quantized {
  std::vector<std::uint8_t> codes;
  float factor[2] = {-1, -1};
  [[nodiscard]] double value(std::size_t i) const {
    return double{quant::e4m3_to_float(codes[i])} * double{factor[0]};
  }
};

Quantized quantize(const Elements& in, std::uint32_t rows, std::uint32_t width, std::uint32_t stride,
                   std::uint32_t spare_rows = 0) {
  Quantized result;
  result.codes.assign(std::size_t{rows + spare_rows} * width, 0xAA);
  run_kernel(test_pool(), kQuantizeFp8,
             QuantizeFp8Args{.rows = address(&rows),
                             .in = in.address(),
                             .out = address(result.codes),
                             .factor = address(result.factor),
                             .max_rows = rows + spare_rows,
                             .width = width,
                             .in_stride = stride,
                             .in_type = in.type()});
  return result;
}

struct Product {
  std::uint32_t rows = 1;
  std::uint32_t ins = 16;
  std::uint32_t outs = 16;
  std::uint32_t out_gap = 0;
  ElementType out_type = ElementType::kF32;
};

Elements multiply(const Product& p, const Quantized& in, const Quantized& weight, unsigned threads = 2) {
  ThreadPool pool(threads);
  Elements out(p.out_type, std::vector<float>(std::size_t{p.rows} * (p.outs + p.out_gap), -7.0F));
  run_kernel(pool, kLinearFp8,
             LinearFp8Args{.rows = address(&p.rows),
                           .in = address(in.codes),
                           .in_factor = address(in.factor),
                           .weight = address(weight.codes),
                           .weight_factor = address(weight.factor),
                           .out = out.address(),
                           .workspace = 0,
                           .max_rows = p.rows,
                           .in_features = p.ins,
                           .out_features = p.outs,
                           .out_stride = p.outs + p.out_gap,
                           .out_type = p.out_type,
                           .workspace_bytes = 0});
  return out;
}

TEST(QuantizeFp8, TheLargestMagnitudeOfTheRowsBecomesTheLargestCode) {
  const Elements in(ElementType::kF32, {1.0F, -896.0F, 2.0F, 0.0F});

  const Quantized result = quantize(in, 2, 2, 2);

  EXPECT_EQ(result.factor[0], 2.0F);
  EXPECT_EQ(result.factor[1], 896.0F);
  EXPECT_EQ(result.codes, (std::vector<std::uint8_t>{0x30, 0xFE, 0x38, 0x00}));
}

TEST(QuantizeFp8, EveryValueIsTheQuotientRoundedToE4m3) {
  std::mt19937 random(7);
  for (const ElementType type : kAllTypes) {
    const Elements in(type, random_normal(random, std::size_t{5} * 40, 3.0F));

    const Quantized result = quantize(in, 5, 33, 40);

    float largest = 0;
    for (std::size_t row = 0; row < 5; ++row) {
      for (std::size_t i = 0; i < 33; ++i) largest = std::max(largest, std::abs(in.get(row * 40 + i)));
    }
    ASSERT_EQ(result.factor[0], largest / 448.0F);
    for (std::size_t i = 0; i < result.codes.size(); ++i) {
      ASSERT_EQ(result.codes[i], quant::float_to_e4m3(in.get(i / 33 * 40 + i % 33) / result.factor[0])) << i;
    }
  }
}

TEST(QuantizeFp8, RowsBeyondTheStepCountForNothingAndStayAsTheyAre) {
  const Elements in(ElementType::kF32, {448.0F, 1.0F, 1e6F, std::nanf("")});

  const Quantized result = quantize(in, 1, 2, 2, 1);

  EXPECT_EQ(result.factor[0], 1.0F);
  EXPECT_EQ(result.codes, (std::vector<std::uint8_t>{0x7E, 0x38, 0xAA, 0xAA}));
}

TEST(QuantizeFp8, InfinitySaturatesAndNanStaysNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Elements in(ElementType::kF32, {-infinity, std::nanf(""), 448.0F, infinity});

  const Quantized result = quantize(in, 1, 4, 4);

  EXPECT_EQ(result.factor[0], 1.0F);
  EXPECT_EQ(result.codes[0], 0xFE);
  EXPECT_EQ(result.codes[1] & 0x7F, 0x7F);
  EXPECT_EQ(result.codes[3], 0x7E);
}

TEST(QuantizeFp8, NothingButZeroesHasTheFactorOne) {
  EXPECT_EQ(quantize(Elements(ElementType::kBf16, 4), 2, 2, 2).factor[0], 1.0F);
  EXPECT_EQ(quantize(Elements(ElementType::kBf16, 4), 0, 2, 2).factor[0], 1.0F);
  EXPECT_EQ(fp8_factor(0x1p-130F), 0x1p-126F);
}

TEST(LinearFp8, AgreesWithTheModel) {
  std::mt19937 random(11);
  for (const ElementType out_type : kAllTypes) {
    for (const Product p : {Product{1, 16, 16, 0, out_type}, Product{5, 48, 32, 3, out_type},
                            Product{33, 576, 64, 0, out_type}}) {
      const Quantized in =
          quantize(Elements(ElementType::kBf16, random_normal(random, std::size_t{p.rows} * p.ins)), p.rows,
                   p.ins, p.ins);
      const Quantized weight =
          quantize(Elements(ElementType::kBf16, random_normal(random, std::size_t{p.outs} * p.ins, 0.1F)),
                   p.outs, p.ins, p.ins);

      const Elements out = multiply(p, in, weight);

      const std::size_t stride = p.outs + p.out_gap;
      for (std::size_t at = 0; at < out.size(); ++at) {
        if (at % stride >= p.outs) {
          ASSERT_EQ(out.get(at), -7.0F) << "outside the result";
          continue;
        }
        double value = 0;
        double magnitude = 0;
        for (std::size_t k = 0; k < p.ins; ++k) {
          const double product = in.value(at / stride * p.ins + k) * weight.value(at % stride * p.ins + k);
          value += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(out.get(at), value, magnitude * 0x1p-24 * (p.ins + 4) + rounding_bound(out_type, value));
      }
    }
  }
}

TEST(LinearFp8, IsTheSameWithAnyNumberOfThreads) {
  std::mt19937 random(13);
  const Product p{9, 160, 112, 0, ElementType::kBf16};
  const Quantized in = quantize(
      Elements(ElementType::kF32, random_normal(random, std::size_t{p.rows} * p.ins)), p.rows, p.ins, p.ins);
  const Quantized weight = quantize(
      Elements(ElementType::kF32, random_normal(random, std::size_t{p.outs} * p.ins)), p.outs, p.ins, p.ins);

  EXPECT_EQ(multiply(p, in, weight, 1).bytes(), multiply(p, in, weight, 4).bytes());
}

TEST(LinearFp8, FeaturesThatAreNoMultipleOf16AreRefused) {
  const Quantized any{std::vector<std::uint8_t>(17 * 32), {1, 1}};
  EXPECT_THAT([&] { static_cast<void>(multiply({.ins = 17}, any, any)); },
              ThrowsMessage<Unsupported>(HasSubstr("in_features 17 and out_features 16")));
  EXPECT_THAT([&] { static_cast<void>(multiply({.outs = 24}, any, any)); },
              ThrowsMessage<Unsupported>(HasSubstr("multiples of 16")));
}

}  // namespace
}  // namespace metrale::kernels
