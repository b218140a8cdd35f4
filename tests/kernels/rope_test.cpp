// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/rope.h>

#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

std::vector<float> inverse_frequencies(std::size_t half) {
  std::vector<float> inv_freq(half);
  for (std::size_t i = 0; i < half; ++i) {
    inv_freq[i] = static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
  }
  return inv_freq;
}

std::vector<float> run_table(const std::vector<std::uint32_t>& positions, const std::vector<float>& inv_freq,
                             float factor) {
  std::vector<float> table(positions.size() * 2 * inv_freq.size());
  const auto rows = static_cast<std::uint32_t>(positions.size());
  RopeTableArgs args{};
  args.rows = address(&rows);
  args.positions = address(positions);
  args.inv_freq = address(inv_freq);
  args.table = address(table);
  args.max_rows = rows;
  args.half_dims = static_cast<std::uint32_t>(inv_freq.size());
  args.factor = factor;
  run_kernel(test_pool(), kRopeTable, args);
  return table;
}

TEST(RopeTable, DynamicScalingStretchesEachPositionPastTheModelsRangeByItsOwnLength) {
  constexpr std::size_t kHalf = 8;
  const std::vector<std::uint32_t> positions{0, 15, 16, 40, 127};
  const auto inv_freq = inverse_frequencies(kHalf);
  std::vector<float> table(positions.size() * 2 * kHalf);
  const auto rows = static_cast<std::uint32_t>(positions.size());
  RopeTableArgs args{};
  args.rows = address(&rows);
  args.positions = address(positions);
  args.inv_freq = address(inv_freq);
  args.table = address(table);
  args.max_rows = rows;
  args.half_dims = kHalf;
  args.factor = 1;
  args.dynamic_theta = 10000;
  args.dynamic_factor = 4;
  args.dynamic_from = 16;

  run_kernel(test_pool(), kRopeTable, args);

  const auto plain = run_table(positions, inv_freq, 1);
  for (std::size_t row = 0; row < rows; ++row) {
    const double length = positions[row] + 1.0;
    const double base = 10000 * std::pow(4 * length / 16 - 3, 8.0 / 7);
    for (std::size_t i = 0; i < kHalf; ++i) {
      const double expected =
          positions[row] < 16 ? double{plain[row * 2 * kHalf + i]}
                              : std::cos(positions[row] * std::pow(base, -static_cast<double>(i) / kHalf));
      EXPECT_NEAR(table[row * 2 * kHalf + i], expected, 2e-5) << positions[row] << " " << i;
    }
  }
}

struct RopeShape {
  std::uint32_t heads;
  std::uint32_t head_dim;
  std::uint32_t rotary_dim;
};

void run_rope(const std::vector<float>& table, Elements& data, std::uint32_t rows, const RopeShape& shape,
              ThreadPool& pool = test_pool()) {
  RopeArgs args{};
  args.rows = address(&rows);
  args.table = address(table);
  args.data = data.address();
  args.max_rows = rows;
  args.stride = static_cast<std::uint32_t>(data.size() / rows);
  args.num_heads = shape.heads;
  args.head_dim = shape.head_dim;
  args.rotary_dim = shape.rotary_dim;
  args.type = data.type();
  run_kernel(pool, kRope, args);
}

TEST(RopeTable, HoldsCosinesAndSinesOfTheRoundedAngle) {
  const std::vector<std::uint32_t> positions{0, 1, 2, 100, 4095, 131071, 1'000'000};
  for (const std::size_t half : {std::size_t{1}, std::size_t{4}, std::size_t{32}, std::size_t{40}}) {
    const auto inv_freq = inverse_frequencies(half);
    const auto table = run_table(positions, inv_freq, 1.25F);
    for (std::size_t row = 0; row < positions.size(); ++row) {
      for (std::size_t i = 0; i < half; ++i) {
        const volatile float angle = static_cast<float>(positions[row]) * inv_freq[i];
        const long double exact = static_cast<long double>(angle);
        ASSERT_NEAR(table[row * 2 * half + i], static_cast<double>(1.25L * std::cos(exact)), 2.5 * 0x1p-24);
        ASSERT_NEAR(table[(row * 2 + 1) * half + i], static_cast<double>(1.25L * std::sin(exact)),
                    2.5 * 0x1p-24);
      }
    }
  }
}

TEST(Rope, TurnsEachPairByItsAngle) {
  const std::uint32_t seed = 1;
  std::mt19937 random(seed);
  for (const RopeShape& shape : {RopeShape{1, 2, 2}, RopeShape{12, 64, 64}, RopeShape{3, 80, 80},
                                 RopeShape{2, 96, 32}, RopeShape{2, 7, 6}, RopeShape{1, 600, 600}}) {
    for (const quant::ElementType type : kAllTypes) {
      const std::size_t half = shape.rotary_dim / 2;
      const std::size_t stride = std::size_t{shape.heads} * shape.head_dim + 5;
      const auto table = run_table({7, 3000}, inverse_frequencies(half), 1.0F);
      const Elements before(type, random_normal(random, 2 * stride));
      Elements data = before;

      run_rope(table, data, 2, shape);

      for (std::size_t i = 0; i < data.size(); ++i) {
        const std::size_t row = i / stride;
        const std::size_t head = i % stride / shape.head_dim;
        const std::size_t d = i % stride % shape.head_dim;
        if (head >= shape.heads || d >= shape.rotary_dim) {
          ASSERT_EQ(data.get(i), before.get(i)) << "element " << i << " passes through";
          continue;
        }
        const std::size_t first = row * stride + head * shape.head_dim + d % half;
        const double x = before.get(first);
        const double y = before.get(first + half);
        const double cosine = table[row * 2 * half + d % half];
        const double sine = table[(row * 2 + 1) * half + d % half];
        const double expected = d < half ? x * cosine - y * sine : y * cosine + x * sine;
        ASSERT_NEAR(data.get(i), expected,
                    (std::abs(x) + std::abs(y)) * 2 * 0x1p-24 + rounding_bound(type, expected))
            << "element " << i << " seed " << seed;
      }
    }
  }
}

TEST(Rope, RowDoesNotDependOnBatchThreadsOrInstructionSet) {
  std::mt19937 random(2);
  const RopeShape shape{9, 64, 64};
  std::vector<std::uint32_t> positions(257);
  for (std::uint32_t i = 0; i < 257; ++i) positions[i] = i * 17;
  const auto table = run_table(positions, inverse_frequencies(32), 1.0F);
  const Elements before(quant::ElementType::kBf16, random_normal(random, std::size_t{257} * 9 * 64));
  Elements all = before;
  run_rope(table, all, 257, shape);
  for (const unsigned threads : {1U, 3U, 4U}) {
    ThreadPool pool(threads);
    Elements data = before;
    run_rope(table, data, 257, shape, pool);
    EXPECT_EQ(data.bytes(), all.bytes()) << threads;
  }
  const ForceAvx2 avx2;
  Elements data = before;
  run_rope(table, data, 257, shape);
  EXPECT_EQ(data.bytes(), all.bytes());
}

TEST(Rope, RejectsAnOddOrTooLargeRotaryDim) {
  Elements data(quant::ElementType::kF32, std::size_t{8});
  for (const std::uint32_t rotary : {3U, 10U}) {
    EXPECT_THAT([&] { run_rope({}, data, 1, {1, 8, rotary}); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(
                    "rotary_dim " + std::to_string(rotary) + " must be even and at most head_dim 8")));
  }
}

TEST(Rope, RejectsMoreRowsThanTheLaunchWasMadeFor) {
  const std::uint32_t rows = 5;
  RopeArgs args{};
  args.rows = address(&rows);
  args.max_rows = 4;
  RopeTableArgs table{};
  table.rows = address(&rows);
  table.max_rows = 4;
  EXPECT_THAT([&] { run_kernel(test_pool(), kRope, args); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("rope: 5 rows")));
  EXPECT_THAT([&] { run_kernel(test_pool(), kRopeTable, table); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("rope_table: 5 rows")));
}

}  // namespace
}  // namespace metrale::kernels
