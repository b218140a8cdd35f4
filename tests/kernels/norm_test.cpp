// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/activation.h>
#include <metrale/kernels/norm.h>

#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

constexpr float kEpsilon = 1e-5F;

Elements run_norm(const Elements& in, const Elements& weight, std::uint32_t rows, quant::ElementType out_type,
                  ThreadPool& pool = test_pool()) {
  const auto width = static_cast<std::uint32_t>(weight.size());
  Elements out(out_type, std::size_t{rows} * width);
  RmsNormArgs args{};
  args.rows = address(&rows);
  args.in = in.address();
  args.weight = weight.address();
  args.out = out.address();
  args.max_rows = rows;
  args.width = width;
  args.in_stride = width;
  args.out_stride = width;
  args.in_type = in.type();
  args.weight_type = weight.type();
  args.out_type = out_type;
  args.epsilon = kEpsilon;
  run_kernel(pool, kRmsNorm, args);
  return out;
}

// Positive terms summed in 16 lanes: each of width / 16 additions errs by half a unit at most.
double norm_error(std::size_t width) {
  return (static_cast<double>(width) / 32 + 8) * 0x1p-24;
}

TEST(RmsNorm, AgreesWithTheModelForEveryWidthAndType) {
  const std::uint32_t seed = 1;
  std::mt19937 random(seed);
  for (const std::uint32_t width : {1U, 2U, 15U, 16U, 17U, 576U, 1023U, 1024U, 1025U, 4096U}) {
    for (const quant::ElementType in_type : kAllTypes) {
      for (const quant::ElementType out_type : kAllTypes) {
        const Elements in(in_type, random_normal(random, std::size_t{3} * width, 2.0F));
        const Elements weight(in_type, random_normal(random, width));
        const Elements out = run_norm(in, weight, 3, out_type);
        for (std::size_t row = 0; row < 3; ++row) {
          double squares = 0;
          for (std::size_t i = 0; i < width; ++i) squares += std::pow(double{in.get(row * width + i)}, 2);
          const double inverse = 1 / std::sqrt(squares / width + double{kEpsilon});
          for (std::size_t i = 0; i < width; ++i) {
            const double expected = in.get(row * width + i) * inverse * weight.get(i);
            ASSERT_NEAR(out.get(row * width + i), expected,
                        std::abs(expected) * norm_error(width) + rounding_bound(out_type, expected))
                << "width " << width << " element " << i << " seed " << seed;
          }
        }
      }
    }
  }
}

TEST(RmsNorm, GroupsOfARowAreNormalisedEachOnItsOwnAndInPlace) {
  std::mt19937 random(5);
  constexpr std::uint32_t kRows = 3;
  constexpr std::uint32_t kGroups = 4;
  constexpr std::uint32_t kWidth = 24;
  constexpr std::uint32_t kStride = 120;  // beyond the groups lies what is not normalised
  const auto values = random_normal(random, std::size_t{kRows} * kStride);
  const Elements weight(quant::ElementType::kF32, random_normal(random, kWidth));
  Elements data(quant::ElementType::kF32, values);
  RmsNormArgs args{};
  args.rows = address(&kRows);
  args.in = data.address();
  args.weight = weight.address();
  args.out = data.address();
  args.max_rows = kRows;
  args.width = kWidth;
  args.in_stride = kStride;
  args.out_stride = kStride;
  args.epsilon = kEpsilon;
  args.groups = kGroups;
  args.in_type = args.out_type = args.weight_type = quant::ElementType::kF32;

  run_kernel(test_pool(), kRmsNorm, args);

  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t group = 0; group < kGroups; ++group) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * kStride + group * kWidth);
      const Elements alone(quant::ElementType::kF32, std::vector<float>(begin, begin + kWidth));
      const Elements expected = run_norm(alone, weight, 1, quant::ElementType::kF32);
      for (std::size_t i = 0; i < kWidth; ++i) {
        ASSERT_EQ(data.get(row * kStride + group * kWidth + i), expected.get(i)) << row << " " << group;
      }
    }
    for (std::size_t i = kGroups * kWidth; i < kStride; ++i) {
      ASSERT_EQ(data.get(row * kStride + i), values[row * kStride + i]);
    }
  }
}

TEST(RmsNorm, RowDoesNotDependOnBatchThreadsOrInstructionSet) {
  std::mt19937 random(2);
  constexpr std::size_t kWidth = 577;
  const Elements in(quant::ElementType::kBf16, random_normal(random, 257 * kWidth));
  const Elements weight(quant::ElementType::kBf16, random_normal(random, kWidth));
  const Elements all = run_norm(in, weight, 257, quant::ElementType::kF32);
  for (const std::size_t row : {std::size_t{0}, std::size_t{100}, std::size_t{256}}) {
    std::vector<float> one(kWidth);
    for (std::size_t i = 0; i < kWidth; ++i) one[i] = in.get(row * kWidth + i);
    const auto alone =
        run_norm(Elements(quant::ElementType::kBf16, one), weight, 1, quant::ElementType::kF32).floats();
    for (std::size_t i = 0; i < kWidth; ++i) ASSERT_EQ(alone[i], all.get(row * kWidth + i)) << row;
  }
  for (const unsigned threads : {1U, 3U, 4U}) {
    ThreadPool pool(threads);
    EXPECT_EQ(run_norm(in, weight, 257, quant::ElementType::kF32, pool).bytes(), all.bytes()) << threads;
  }
  const ForceAvx2 avx2;
  EXPECT_EQ(run_norm(in, weight, 257, quant::ElementType::kF32).bytes(), all.bytes());
}

TEST(RmsNorm, ReadsAndWritesByStrideAndMayWorkInPlace) {
  const std::vector<float> values{3, 4, 99, 6, 8, 99};
  Elements data(quant::ElementType::kF32, values);
  const Elements weight(quant::ElementType::kF32, std::vector<float>{1, 2});
  const std::uint32_t rows = 2;
  RmsNormArgs args{};
  args.rows = address(&rows);
  args.in = data.address();
  args.weight = weight.address();
  args.out = data.address();
  args.max_rows = 2;
  args.width = 2;
  args.in_stride = 3;
  args.out_stride = 3;

  run_kernel(test_pool(), kRmsNorm, args);

  const double inverse = 1 / std::sqrt(12.5);
  EXPECT_THAT(data.floats(),
              testing::Pointwise(testing::FloatEq(),
                                 {static_cast<float>(3 * inverse), static_cast<float>(8 * inverse), 99.0F,
                                  static_cast<float>(3 * inverse), static_cast<float>(8 * inverse), 99.0F}));
}

TEST(AddRmsNorm, IsTheSumAndItsNormBitForBit) {
  std::mt19937 random(6);
  for (const std::uint32_t width : {1U, 7U, 16U, 577U, 1025U, 4096U}) {
    for (const quant::ElementType out_type : kAllTypes) {
      const std::uint32_t rows = 3;
      const Elements branch(quant::ElementType::kF32, random_normal(random, std::size_t{rows} * width));
      const auto residual = random_normal(random, std::size_t{rows} * width, 2.0F);
      const Elements weight(quant::ElementType::kF32, random_normal(random, width));
      Elements sums(quant::ElementType::kF32, residual);
      run_kernel(test_pool(), kResidualAdd,
                 {.rows = address(&rows),
                  .in = branch.address(),
                  .accum = sums.address(),
                  .max_rows = rows,
                  .width = width,
                  .in_type = quant::ElementType::kF32,
                  .reserved = 0});
      const Elements expected = run_norm(sums, weight, rows, out_type);

      Elements accum(quant::ElementType::kF32, residual);
      Elements out(out_type, std::size_t{rows} * width);
      run_kernel(test_pool(), kAddRmsNorm,
                 {.rows = address(&rows),
                  .in = branch.address(),
                  .accum = accum.address(),
                  .weight = weight.address(),
                  .out = out.address(),
                  .max_rows = rows,
                  .width = width,
                  .out_type = out_type,
                  .epsilon = kEpsilon});

      EXPECT_EQ(accum.bytes(), sums.bytes()) << width;
      EXPECT_EQ(out.bytes(), expected.bytes()) << width;
    }
  }
}

TEST(RmsNorm, WritesNothingForNoRows) {
  Elements out(quant::ElementType::kF32, std::vector<float>{5});
  const std::uint32_t rows = 0;
  RmsNormArgs args{};
  args.rows = address(&rows);
  args.in = out.address();
  args.weight = out.address();
  args.out = out.address();
  args.max_rows = 1;
  args.width = 1;
  run_kernel(test_pool(), kRmsNorm, args);
  EXPECT_EQ(out.get(0), 5.0F);
}

TEST(RmsNorm, RejectsMoreRowsThanTheLaunchWasMadeFor) {
  const std::uint32_t rows = 5;
  RmsNormArgs args{};
  args.rows = address(&rows);
  args.max_rows = 4;
  EXPECT_THAT([&] { run_kernel(test_pool(), kRmsNorm, args); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(
                  "rms_norm: 5 rows in this step, but the launch was made for at most 4")));
}

}  // namespace
}  // namespace metrale::kernels
