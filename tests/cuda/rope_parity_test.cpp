// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/rope.h>

#include "cuda/support/parity.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;

std::vector<float> inverse_frequencies(std::size_t half) {
  std::vector<float> frequencies(half);
  for (std::size_t i = 0; i < half; ++i) {
    frequencies[i] =
        static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
  }
  return frequencies;
}

std::vector<float> run_table(gpu::GpuBackend& gpu, const std::vector<std::uint32_t>& positions,
                             std::uint32_t half, std::uint32_t dynamic_from) {
  DeviceRun run(gpu);
  const auto rows = static_cast<std::uint32_t>(positions.size());
  const std::size_t count = positions.size() * 2 * half;
  const std::uint64_t table = run.room(count * 4);
  run.run(kRopeTable, RopeTableArgs{.rows = run.put(rows),
                                    .positions = run.put(positions),
                                    .inv_freq = run.put(inverse_frequencies(half)),
                                    .table = table,
                                    .max_rows = rows + 1,
                                    .half_dims = half,
                                    .factor = 1.25F,
                                    .dynamic_theta = 10000,
                                    .dynamic_factor = 4,
                                    .dynamic_from = dynamic_from});
  return run.get<float>(table, count);
}

void expect_close_tables(std::uint32_t half, std::uint32_t dynamic_from) {
  const std::vector<std::uint32_t> positions{0, 1, 15, 16, 17, 4095, 131'071, 1'000'003};
  const auto expected = run_table(cpu_backend(), positions, half, dynamic_from);
  const auto actual = run_table(cuda_backend(), positions, half, dynamic_from);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // Cosine and sine are right to two units of double on either side: one unit of float after rounding.
    ASSERT_NEAR(actual[i], expected[i], std::abs(expected[i]) * 0x1p-22F + 0x1p-50F)
        << half << " pairs, element " << i;
  }
}

TEST(CudaRopeTable, IsWithinAUnitOfTheCpu) {
  for (const std::uint32_t half : {1U, 5U, 32U, 64U, 160U}) expect_close_tables(half, 0);
}

TEST(CudaRopeTable, ScalesDynamicallyAsTheCpuDoes) {
  for (const std::uint32_t half : {2U, 32U, 64U}) expect_close_tables(half, 16);
}

TEST(CudaRopeTable, RefusesDynamicScalingOfOnePair) {
  EXPECT_THROW((void)run_table(cuda_backend(), {1}, 1, 16), InvalidArgument);
}

struct RopeCase {
  std::uint32_t num_heads = 2;
  std::uint32_t head_dim = 64;
  std::uint32_t rotary_dim = 64;
  std::uint32_t gap = 0;
  [[nodiscard]] std::uint32_t stride() const { return num_heads * head_dim + gap; }
};

RopeArgs rope_args(const RopeCase& c, std::uint64_t rows, std::uint64_t table, std::uint64_t data,
                   std::uint32_t max_rows, ElementType type) {
  return {.rows = rows,
          .table = table,
          .data = data,
          .max_rows = max_rows,
          .stride = c.stride(),
          .num_heads = c.num_heads,
          .head_dim = c.head_dim,
          .rotary_dim = c.rotary_dim,
          .type = type};
}

// `data` has one row more than is turned.
Elements run_rope(gpu::GpuBackend& gpu, const RopeCase& c, const Elements& data,
                  const std::vector<float>& table) {
  DeviceRun run(gpu);
  const auto rows = static_cast<std::uint32_t>(data.size() / c.stride() - 1);
  const std::uint64_t at = run.put(data);
  run.run(kRope, rope_args(c, run.put(rows), run.put(table), at, rows + 1, data.type()));
  return run.get(data.type(), at, data.size());
}

TEST(CudaRope, HasTheBitsOfTheCpuAndLeavesTheRestAlone) {
  std::mt19937 random(61);
  for (const ElementType type : kAllTypes) {
    for (const RopeCase& c : {RopeCase{}, RopeCase{.num_heads = 40, .head_dim = 128, .rotary_dim = 128},
                              RopeCase{.num_heads = 3, .head_dim = 80, .rotary_dim = 32, .gap = 16},
                              RopeCase{.num_heads = 3, .head_dim = 80, .rotary_dim = 32, .gap = 3},
                              RopeCase{.num_heads = 5, .head_dim = 10, .rotary_dim = 6, .gap = 1},
                              RopeCase{.num_heads = 1, .head_dim = 96, .rotary_dim = 96},
                              RopeCase{.num_heads = 2, .head_dim = 4, .rotary_dim = 2}}) {
      const Elements data(type, random_normal(random, std::size_t{7} * c.stride()));
      const auto table = random_normal(random, std::size_t{6} * c.rotary_dim);

      const Elements expected = run_rope(cpu_backend(), c, data, table);
      const Elements actual = run_rope(cuda_backend(), c, data, table);

      expect_same(actual, expected,
                  std::string(to_string(type)) + ", " + std::to_string(c.num_heads) + " heads of " +
                      std::to_string(c.head_dim));
    }
  }
}

TEST(CudaRope, ReachesRowsBeyondTwoGibibytes) {
  constexpr std::uint32_t kRows = 1100;
  const RopeCase c;
  std::mt19937 random(62);
  const Elements data(ElementType::kBf16, random_normal(random, std::size_t{2} * c.stride()));
  const auto table = random_normal(random, std::size_t{kRows} * c.rotary_dim);
  const std::vector<float> last_angles(table.end() - c.rotary_dim, table.end());
  const Elements expected = run_rope(cpu_backend(), c, data, last_angles);
  RopeCase spread = c;
  spread.gap = (1U << 20) - c.stride();
  gpu::GpuBackend& gpu = cuda_backend();
  DeviceRun run(gpu);
  BigBuffer rows(gpu, std::uint64_t{kRows} * spread.stride() * 2);
  const std::uint64_t last = std::uint64_t{kRows - 1} * spread.stride() * 2;
  ASSERT_GT(last, kBeyond31Bits);
  rows.put(last, data.bytes());

  run.run(kRope,
          rope_args(spread, run.put(kRows), run.put(table), rows.address(), kRows, ElementType::kBf16));

  expect_same(run.get(ElementType::kBf16, rows.address() + last, data.size()), expected, "last row");
}

TEST(CudaRope, RefusesAnOddRotaryDim) {
  const RopeCase c{.rotary_dim = 5};
  DeviceRun run(cuda_backend());
  EXPECT_THROW(run.run(kRope, rope_args(c, run.put(1U), 0, 0, 1, ElementType::kF32)), InvalidArgument);
}

}  // namespace
}  // namespace metrale::kernels
