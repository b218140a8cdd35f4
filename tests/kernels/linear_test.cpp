// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>

#include "kernels/support/linear_case.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

void expect_model(const LinearCase& c, std::uint32_t seed, CpuIsa isa,
                  const gpu::KernelId<LinearArgs>& kernel = kLinear) {
  std::mt19937 random(seed);
  const LinearData data = random_linear(random, c);
  const Elements out = run_linear(c, data, 2, kernel);
  for (std::uint32_t row = 0; row < c.rows + c.spare_rows; ++row) {
    for (std::uint32_t o = 0; o < c.out_stride(); ++o) {
      const float value = out.get(std::size_t{row} * c.out_stride() + o);
      if (row >= c.rows || o >= c.out_features) {
        ASSERT_EQ(value, kUntouched) << "row " << row << " element " << o << " lies outside the result";
        continue;
      }
      const LinearModel model = model_linear(c, data, row, o);
      ASSERT_NEAR(value, model.value, model.tolerance)
          << to_string(isa) << " seed " << seed << " row " << row << " output " << o << " of " << c.rows
          << " x " << c.in_features << " -> " << c.out_features << ", " << to_string(c.in_type) << " * "
          << to_string(c.weight_type) << " -> " << to_string(c.out_type);
    }
  }
}

TEST(LinearFast, AgreesWithTheModelForEveryTripleAndShape) {
  std::uint32_t seed = 5000;
  for (const ElementType in : kAllTypes) {
    for (const ElementType weight : kAllTypes) {
      for (const ElementType out : kAllTypes) {
        for (const std::uint32_t outs : {1U, 43U, 200U}) {
          const LinearCase c{.rows = 21,
                             .in_features = 75,
                             .out_features = outs,
                             .in_type = in,
                             .weight_type = weight,
                             .out_type = out,
                             .bias = outs != 43,
                             .in_gap = 5,
                             .out_gap = 3,
                             .spare_rows = 2};
          expect_model(c, ++seed, cpu_isa(), kLinearFast);
        }
      }
    }
  }
}

TEST(LinearFast, FewRowsAreThoseOfLinear) {
  std::mt19937 random(3);
  const LinearCase c{.rows = kLinearFastRows - 1, .in_features = 100, .out_features = 70};
  const LinearData data = random_linear(random, c);
  EXPECT_EQ(run_linear(c, data, 2, kLinearFast).bytes(), run_linear(c, data).bytes());
}

TEST(Linear, AgreesWithTheModelForEveryTriple) {
  EachIsa each_isa;
  std::uint32_t seed = 100;
  each_isa([&](CpuIsa isa) {
    for (const ElementType in : kAllTypes) {
      for (const ElementType weight : kAllTypes) {
        for (const ElementType out : kAllTypes) {
          for (const std::uint32_t rows : {1U, 3U, 21U}) {
            const LinearCase c{.rows = rows,
                               .in_features = 75,
                               .out_features = 43,
                               .in_type = in,
                               .weight_type = weight,
                               .out_type = out,
                               .bias = rows != 3,
                               .in_gap = rows,
                               .out_gap = 3,
                               .spare_rows = 2};
            expect_model(c, ++seed, isa);
          }
        }
      }
    }
  });
}

TEST(Linear, AgreesWithTheModelAtEveryWidth) {
  EachIsa each_isa;
  std::uint32_t seed = 1000;
  each_isa([&](CpuIsa isa) {
    for (const ElementType type : kAllTypes) {
      for (const std::uint32_t in_features : {1U, 2U, 3U, 15U, 16U, 17U, 31U, 32U, 33U, 64U, 576U}) {
        for (const std::uint32_t out_features : {1U, 7U, 8U, 9U, 16U, 17U, 31U, 32U, 33U}) {
          for (const std::uint32_t rows : {1U, 9U}) {
            const LinearCase c{.rows = rows,
                               .in_features = in_features,
                               .out_features = out_features,
                               .in_type = type,
                               .weight_type = type};
            expect_model(c, ++seed, isa);
          }
        }
      }
    }
  });
}

TEST(Linear, AgreesWithTheModelWhereOneAxisIsLong) {
  EachIsa each_isa;
  std::uint32_t seed = 2000;
  each_isa([&](CpuIsa isa) {
    for (const ElementType type : kAllTypes) {
      expect_model({.rows = 20, .in_features = 5001, .out_features = 5, .in_type = type, .weight_type = type},
                   ++seed, isa);
      expect_model({.rows = 1, .in_features = 5, .out_features = 5001, .in_type = type, .weight_type = type},
                   ++seed, isa);
      expect_model({.rows = 1200, .in_features = 6, .out_features = 37, .in_type = type, .weight_type = type},
                   ++seed, isa);
    }
    // More activations than are converted at a time.
    expect_model({.rows = 150, .in_features = 9001, .out_features = 2, .in_type = ElementType::kF16}, ++seed,
                 isa);
  });
}

// What the header promises of FP32 arithmetic, one number at a time.
float sum_of_lanes(const LinearCase& c, const LinearData& data, std::size_t row, std::size_t out) {
  const std::size_t per_word = c.weight_type == ElementType::kF32 ? 1 : 2;
  float lanes[16] = {};
  for (std::size_t k = 0; k < c.in_features; ++k) {
    float& lane = lanes[k / per_word % 16];
    lane = std::fma(data.in.get(row * c.in_features + k), data.weight.get(out * c.in_features + k), lane);
  }
  for (std::size_t step = 8; step != 0; step /= 2) {
    for (std::size_t i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

TEST(Linear, AddsFp32ProductsInLanesOnEveryProcessor) {
  EachIsa each_isa;
  std::mt19937 random(7);
  for (const ElementType weight : kAllTypes) {
    for (const std::uint32_t in_features : {1234U, 1280U, 5U}) {
      const LinearCase c{
          .rows = 17, .in_features = in_features, .out_features = 21, .weight_type = weight, .bias = true};
      const LinearData data = random_linear(random, c);
      each_isa([&](CpuIsa isa) {
        const Elements out = run_linear(c, data);
        for (std::uint32_t row = 0; row < c.rows; ++row) {
          for (std::uint32_t o = 0; o < c.out_features; ++o) {
            ASSERT_EQ(out.get(std::size_t{row} * c.out_features + o),
                      sum_of_lanes(c, data, row, o) + data.bias.get(o))
                << to_string(isa) << " " << to_string(weight) << " row " << row << " output " << o;
          }
        }
      });
    }
  }
}

TEST(Linear, SubnormalsCountInFp32Arithmetic) {
  EachIsa each_isa;
  const LinearCase c{.rows = 9, .in_features = 2, .out_features = 3, .weight_type = ElementType::kF16};
  const LinearData data{Elements(ElementType::kF32, std::vector<float>(18, 0x1p-130F)),
                        Elements(ElementType::kF16, std::vector<float>(6, 0x1p-16F)),
                        Elements(ElementType::kF16, std::vector<float>(3, 0.0F))};
  each_isa([&](CpuIsa isa) {
    for (const float value : run_linear(c, data).floats()) EXPECT_EQ(value, 0x1p-145F) << to_string(isa);
  });
}

// The BF16 instruction takes subnormals as zero; elsewhere they count. Either way the error is below the
// smallest normal number times the other factor.
TEST(Linear, SubnormalBf16ProductsAreZeroAtWorst) {
  EachIsa each_isa;
  const LinearCase c{.rows = 9,
                     .in_features = 4,
                     .out_features = 3,
                     .in_type = ElementType::kBf16,
                     .weight_type = ElementType::kBf16};
  const LinearData data{Elements(ElementType::kBf16, std::vector<float>(36, 0x1p-130F)),
                        Elements(ElementType::kBf16, std::vector<float>(12, 4.0F)),
                        Elements(ElementType::kBf16, std::vector<float>(3, 0.0F))};
  each_isa([&](CpuIsa isa) {
    const float expected = isa == CpuIsa::kAvx512Bf16 ? 0.0F : 0x1p-126F;
    for (const float value : run_linear(c, data).floats()) EXPECT_EQ(value, expected) << to_string(isa);
  });
}

TEST(Linear, NanAndInfinityReachTheirOutputsOnly) {
  EachIsa each_isa;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const ElementType type : kAllTypes) {
    const LinearCase c{.rows = 7,
                       .in_features = 33,
                       .out_features = 19,
                       .in_type = type,
                       .weight_type = type,
                       .out_type = type};
    LinearData data{Elements(type, std::vector<float>(std::size_t{7} * 33, 1.0F)),
                    Elements(type, std::vector<float>(std::size_t{19} * 33, 1.0F)), Elements(type, 19)};
    data.in.set(2 * 33 + 32, kNan);             // row 2
    data.in.set(4 * 33 + 31, kInfinity);        // row 4
    data.weight.set(18 * 33 + 32, -kInfinity);  // output 18
    each_isa([&](CpuIsa isa) {
      const Elements out = run_linear(c, data);
      for (std::size_t row = 0; row < 7; ++row) {
        for (std::size_t o = 0; o < 19; ++o) {
          const float value = out.get(row * 19 + o);
          if (row == 2 || (row == 4 && o == 18)) {
            EXPECT_TRUE(std::isnan(value)) << to_string(isa) << " row " << row << " output " << o;
          } else {
            EXPECT_EQ(value, o == 18    ? -kInfinity
                             : row == 4 ? kInfinity
                                        : 33.0F)
                << to_string(isa) << " row " << row << " output " << o;
          }
        }
      }
    });
  }
}

TEST(Linear, ResultsAreRoundedToNearestEven) {
  EachIsa each_isa;
  each_isa([&](CpuIsa isa) {
    for (const ElementType type : {ElementType::kBf16, ElementType::kF16}) {
      std::mt19937 random(11);
      std::uniform_int_distribution<std::uint32_t> any;
      const LinearCase c{.rows = 4096, .in_features = 1, .out_features = 1, .out_type = type};
      LinearData data{Elements(ElementType::kF32, 4096),
                      Elements(ElementType::kF32, std::vector<float>{1.0F}),
                      Elements(ElementType::kF32, std::vector<float>{0.0F})};
      for (std::size_t i = 0; i < 4096; ++i) data.in.set(i, std::bit_cast<float>(any(random) & ~0xFFFU));
      Elements expected(type, data.in.floats());
      const Elements out = run_linear(c, data);
      for (std::size_t i = 0; i < 4096; ++i) {
        if (std::isnan(data.in.get(i))) {
          EXPECT_TRUE(std::isnan(out.get(i)));
        } else {
          // Adding to the +0 that a sum starts from makes -0 a +0.
          EXPECT_EQ(out.get(i), expected.get(i)) << to_string(isa) << " " << data.in.get(i);
        }
      }
    }
  });
}

TEST(Linear, AnEmptyBatchWritesNothing) {
  std::mt19937 random(1);
  LinearCase c{.rows = 0, .in_features = 4, .out_features = 4, .spare_rows = 3};
  const LinearData data{Elements(ElementType::kF32, 12), Elements(ElementType::kF32, 16),
                        Elements(ElementType::kF32, 4)};

  const Elements out = run_linear(c, data);

  EXPECT_THAT(out.floats(), testing::Each(kUntouched));
}

TEST(Linear, MoreRowsThanMaxRowsIsRefused) {
  const std::uint32_t rows = 9;
  std::vector<float> memory(64);
  const LinearArgs args{.rows = address(&rows),
                        .in = address(memory),
                        .weight = address(memory),
                        .bias = 0,
                        .out = address(memory),
                        .max_rows = 8,
                        .in_features = 2,
                        .out_features = 2,
                        .in_stride = 2,
                        .out_stride = 2,
                        .in_type = ElementType::kF32,
                        .weight_type = ElementType::kF32,
                        .out_type = ElementType::kF32};
  EXPECT_THAT(
      [&] { run_kernel(test_pool(), kLinear, args); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("linear::linear"), HasSubstr("9"), HasSubstr("8"))));
}

TEST(Linear, StridesBelowTheWidthAreRefused) {
  const std::uint32_t rows = 1;
  std::vector<float> memory(64);
  LinearArgs args{.rows = address(&rows),
                  .in = address(memory),
                  .weight = address(memory),
                  .bias = 0,
                  .out = address(memory),
                  .max_rows = 8,
                  .in_features = 4,
                  .out_features = 5,
                  .in_stride = 3,
                  .out_stride = 5,
                  .in_type = ElementType::kF32,
                  .weight_type = ElementType::kF32,
                  .out_type = ElementType::kF32};
  EXPECT_THAT([&] { run_kernel(test_pool(), kLinear, args); },
              ThrowsMessage<InvalidArgument>(HasSubstr("in_features 4 (stride 3)")));
  args.in_stride = 4;
  args.out_stride = 4;
  EXPECT_THAT([&] { run_kernel(test_pool(), kLinear, args); },
              ThrowsMessage<InvalidArgument>(HasSubstr("out_features 5 (stride 4)")));
}

TEST(Linear, AnUnknownTypeIsRefused) {
  const std::uint32_t rows = 1;
  std::vector<float> memory(64);
  const LinearArgs args{.rows = address(&rows),
                        .in = address(memory),
                        .weight = address(memory),
                        .bias = 0,
                        .out = address(memory),
                        .max_rows = 8,
                        .in_features = 2,
                        .out_features = 2,
                        .in_stride = 2,
                        .out_stride = 2,
                        .in_type = ElementType::kF32,
                        .weight_type = static_cast<ElementType>(3),
                        .out_type = ElementType::kF32};
  EXPECT_THAT([&] { run_kernel(test_pool(), kLinear, args); },
              ThrowsMessage<Unsupported>(HasSubstr("element type 3")));
}

}  // namespace
}  // namespace metrale::kernels
