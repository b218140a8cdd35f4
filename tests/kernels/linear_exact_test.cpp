// SPDX-License-Identifier: Apache-2.0
// Exact by construction: the rows beside a row, its place, the number of threads and max_rows never show in
// its bits.
#include <gtest/gtest.h>

#include "kernels/support/linear_case.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;

void expect_rows_as_alone(const LinearCase& c, const LinearData& data, unsigned threads, CpuIsa isa) {
  const Elements together = run_linear(c, data, threads);
  for (std::uint32_t row = 0; row < c.rows; ++row) {
    const LinearCase alone = single_row(c);
    const Elements expected = run_linear(alone, single_row(c, data, row), 1);
    ASSERT_EQ(linear_row(c, together, row), expected.bytes())
        << to_string(isa) << " row " << row << " of " << c.rows << ", " << threads << " threads, "
        << c.in_features << " -> " << c.out_features << ", " << to_string(c.in_type) << " * "
        << to_string(c.weight_type) << " -> " << to_string(c.out_type);
  }
}

TEST(LinearExactness, RandomBatchesGiveEachRowItsOwnBits) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto pick = [&](std::uint32_t low, std::uint32_t high) {
    return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
  };
  EachIsa each_isa;
  for (int i = 0; i < 60; ++i) {
    const LinearCase c{.rows = pick(1, 70),
                       .in_features = pick(1, 300),
                       .out_features = pick(1, 150),
                       .in_type = kAllTypes[pick(0, 2)],
                       .weight_type = kAllTypes[pick(0, 2)],
                       .out_type = kAllTypes[pick(0, 2)],
                       .bias = pick(0, 1) == 1,
                       .in_gap = pick(0, 9),
                       .out_gap = pick(0, 9),
                       .spare_rows = pick(0, 100)};
    const LinearData data = random_linear(random, c);
    const unsigned threads = pick(1, 4);
    each_isa([&](CpuIsa isa) { expect_rows_as_alone(c, data, threads, isa); });
    if (HasFatalFailure()) return;
  }
}

TEST(LinearExactness, EveryRowCountGivesTheSameBits) {
  EachIsa each_isa;
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
    std::mt19937 random(3);
    const LinearCase most{.rows = 70,
                          .in_features = 192,
                          .out_features = 67,
                          .in_type = type,
                          .weight_type = ElementType::kBf16};
    const LinearData data = random_linear(random, most);
    each_isa([&](CpuIsa isa) {
      const auto all = run_linear(most, data);
      for (std::uint32_t rows = 1; rows < 70; ++rows) {
        LinearCase c = most;
        c.rows = rows;
        const Elements out = run_linear(c, data, 1 + rows % 4);
        for (std::uint32_t row = 0; row < rows; ++row) {
          ASSERT_EQ(linear_row(c, out, row), linear_row(most, all, row))
              << to_string(isa) << " row " << row << " of " << rows << " " << to_string(type);
        }
      }
    });
  }
}

// More rows than a block, rows that lie where the caches would clash, few outputs for many threads.
TEST(LinearExactness, TheCutsOfLargeProductsDoNotShow) {
  EachIsa each_isa;
  std::mt19937 random(4);
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
    for (const LinearCase& c :
         {LinearCase{.rows = 30,
                     .in_features = 4501,
                     .out_features = 40,
                     .in_type = type,
                     .weight_type = ElementType::kBf16},
          LinearCase{.rows = 150,
                     .in_features = 16384,
                     .out_features = 3,
                     .in_type = type,
                     .weight_type = ElementType::kBf16},
          LinearCase{
              .rows = 25, .in_features = 2048, .out_features = 9, .in_type = type, .weight_type = type},
          LinearCase{.rows = 1061,
                     .in_features = 40,
                     .out_features = 33,
                     .in_type = type,
                     .weight_type = ElementType::kBf16,
                     .out_type = ElementType::kBf16}}) {
      const LinearData data = random_linear(random, c);
      each_isa([&](CpuIsa isa) { expect_rows_as_alone(c, data, 4, isa); });
    }
  }
}

}  // namespace
}  // namespace metrale::kernels
