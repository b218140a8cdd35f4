// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <numbers>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/activation.h>

#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

// gate_up[row] = gate[width], up[width]: the layout of a fused projection.
Elements run_gated(const gpu::KernelId<GatedMulArgs>& kernel, const Elements& gate_up, std::uint32_t rows,
                   std::uint32_t width, ThreadPool& pool = test_pool()) {
  Elements out(gate_up.type(), std::size_t{rows} * width);
  GatedMulArgs args{};
  args.rows = address(&rows);
  args.gate = gate_up.address();
  args.up = gate_up.address() + std::uint64_t{width} * quant::element_bytes(gate_up.type());
  args.out = out.address();
  args.max_rows = rows;
  args.width = width;
  args.in_stride = 2 * width;
  args.out_stride = width;
  args.type = gate_up.type();
  run_kernel(pool, kernel, args);
  return out;
}

Elements run_silu(const Elements& gate_up, std::uint32_t rows, std::uint32_t width,
                  ThreadPool& pool = test_pool()) {
  return run_gated(kSiluMul, gate_up, rows, width, pool);
}

TEST(SiluMul, AgreesWithTheModelForEveryWidthAndType) {
  const std::uint32_t seed = 1;
  std::mt19937 random(seed);
  for (const std::uint32_t width : {1U, 15U, 16U, 17U, 1023U, 1025U, 1536U}) {
    for (const quant::ElementType type : kAllTypes) {
      const Elements in(type, random_normal(random, std::size_t{4} * width, 4.0F));
      const Elements out = run_silu(in, 2, width);
      for (std::size_t row = 0; row < 2; ++row) {
        for (std::size_t i = 0; i < width; ++i) {
          const double gate = in.get(row * 2 * width + i);
          const double expected = gate / (1 + std::exp(-gate)) * in.get((row * 2 + 1) * width + i);
          ASSERT_NEAR(out.get(row * width + i), expected,
                      std::abs(expected) * 6 * 0x1p-24 + rounding_bound(type, expected))
              << "gate " << gate << " seed " << seed;
        }
      }
    }
  }
}

TEST(GeluTanhMul, AgreesWithTheModelForEveryWidthAndType) {
  std::mt19937 random(6);
  for (const std::uint32_t width : {1U, 16U, 17U, 1025U}) {
    for (const quant::ElementType type : kAllTypes) {
      const Elements in(type, random_normal(random, std::size_t{4} * width, 3.0F));
      const Elements out = run_gated(kGeluTanhMul, in, 2, width);
      for (std::size_t row = 0; row < 2; ++row) {
        for (std::size_t i = 0; i < width; ++i) {
          const double gate = in.get(row * 2 * width + i);
          const double inner = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
          const double up = in.get((row * 2 + 1) * width + i);
          const double expected = 0.5 * gate * (1 + std::tanh(inner)) * up;
          // The exponent's rounding grows with its size, where the result is small.
          const double bound = std::abs(gate * up) * 1e-6;
          ASSERT_NEAR(out.get(row * width + i), expected, bound + rounding_bound(type, expected)) << gate;
        }
      }
    }
  }
}

TEST(GeluTanhMul, SaturatesAtTheEndsOfTheRangeAndAgreesOnEveryInstructionSet) {
  std::mt19937 random(7);
  const Elements ends(quant::ElementType::kF32, std::vector<float>{1e20F, -1e20F, 0, 30, 1, 1, 1, 1});
  const Elements out = run_gated(kGeluTanhMul, ends, 1, 4);
  EXPECT_EQ(out.floats(), (std::vector<float>{1e20F, 0, 0, 30}));
  const Elements in(quant::ElementType::kF32, random_normal(random, 2 * 1537));
  const Elements wide = run_gated(kGeluTanhMul, in, 1, 1537);
  const ForceAvx2 avx2;
  EXPECT_EQ(run_gated(kGeluTanhMul, in, 1, 1537).bytes(), wide.bytes());
}

TEST(SiluMul, SaturatesAtTheEndsOfTheRange) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Elements in(quant::ElementType::kF32, std::vector<float>{200, -200, 0, nan, -80, 1, 1, 1, 1, 1});

  const Elements out = run_silu(in, 1, 5);

  EXPECT_EQ(out.get(0), 200.0F);
  EXPECT_EQ(out.get(1), 0.0F);
  EXPECT_EQ(out.get(2), 0.0F);
  EXPECT_TRUE(std::isnan(out.get(3)));
  EXPECT_NEAR(out.get(4), -80 * std::exp(-80.0), 1e-39);
  EXPECT_EQ(run_silu(Elements(quant::ElementType::kF32, std::vector<float>{inf, 1}), 1, 1).get(0), inf);
}

TEST(SiluMul, RowDoesNotDependOnBatchThreadsOrInstructionSet) {
  std::mt19937 random(2);
  constexpr std::uint32_t kWidth = 1537;
  const Elements in(quant::ElementType::kF32, random_normal(random, std::size_t{257} * 2 * kWidth));
  const Elements all = run_silu(in, 257, kWidth);
  const Elements first = run_silu(in, 1, kWidth);
  EXPECT_TRUE(std::equal(first.bytes().begin(), first.bytes().end(), all.bytes().begin()));
  for (const unsigned threads : {1U, 3U, 4U}) {
    ThreadPool pool(threads);
    EXPECT_EQ(run_silu(in, 257, kWidth, pool).bytes(), all.bytes()) << threads;
  }
  const ForceAvx2 avx2;
  EXPECT_EQ(run_silu(in, 257, kWidth).bytes(), all.bytes());
}

TEST(SiluMul, RejectsMoreRowsThanTheLaunchWasMadeFor) {
  const std::uint32_t rows = 5;
  GatedMulArgs args{};
  args.rows = address(&rows);
  args.max_rows = 4;
  EXPECT_THAT([&] { run_kernel(test_pool(), kSiluMul, args); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("silu_mul: 5 rows")));
}

TEST(ResidualAdd, AddsInFp32ForEveryWidthAndType) {
  std::mt19937 random(3);
  for (const std::uint32_t width : {1U, 15U, 17U, 576U, 1024U, 1031U}) {
    for (const quant::ElementType type : kAllTypes) {
      const std::uint32_t rows = 3;
      const Elements in(type, random_normal(random, std::size_t{rows} * width));
      const auto before = random_normal(random, std::size_t{rows} * width);
      auto accum = before;
      ResidualAddArgs args{};
      args.rows = address(&rows);
      args.in = in.address();
      args.accum = address(accum);
      args.max_rows = rows;
      args.width = width;
      args.in_type = type;

      run_kernel(test_pool(), kResidualAdd, args);

      for (std::size_t i = 0; i < accum.size(); ++i) ASSERT_EQ(accum[i], before[i] + in.get(i)) << i;
    }
  }
}

TEST(ResidualAdd, LeavesRowsBeyondTheStepAlone) {
  const std::uint32_t rows = 1;
  const Elements in(quant::ElementType::kF32, std::vector<float>{1, 1, 1, 1});
  std::vector<float> accum{5, 5, 5, 5};
  ResidualAddArgs args{};
  args.rows = address(&rows);
  args.in = in.address();
  args.accum = address(accum);
  args.max_rows = 2;
  args.width = 2;

  run_kernel(test_pool(), kResidualAdd, args);

  EXPECT_EQ(accum, (std::vector<float>{6, 6, 5, 5}));
}

TEST(ResidualAdd, RejectsMoreRowsThanTheLaunchWasMadeFor) {
  const std::uint32_t rows = 5;
  ResidualAddArgs args{};
  args.rows = address(&rows);
  args.max_rows = 4;
  EXPECT_THAT([&] { run_kernel(test_pool(), kResidualAdd, args); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("residual_add: 5 rows")));
}

}  // namespace
}  // namespace metrale::kernels
