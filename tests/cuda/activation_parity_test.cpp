// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/activation.h>

#include "cuda/support/parity.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;

struct GatedCase {
  std::uint32_t rows = 3;
  std::uint32_t width = 8;
  std::uint32_t in_gap = 0;
  std::uint32_t out_gap = 0;
  ElementType type = ElementType::kF32;
};

// gate and up lie in one buffer, as a joint projection leaves them where `in_gap` is the width.
Elements run_gated(gpu::GpuBackend& gpu, const gpu::KernelId<GatedMulArgs>& id, const GatedCase& c,
                   const Elements& gate, const Elements& up) {
  DeviceRun run(gpu);
  const std::size_t out_elems = std::size_t{c.rows} * (c.width + c.out_gap);
  const std::uint64_t out = run.room(out_elems * quant::element_bytes(c.type));
  run.run(id, GatedMulArgs{.rows = run.put(c.rows),
                           .gate = run.put(gate),
                           .up = run.put(up),
                           .out = out,
                           .max_rows = c.rows + 2,
                           .width = c.width,
                           .in_stride = c.width + c.in_gap,
                           .out_stride = c.width + c.out_gap,
                           .type = c.type,
                           .reserved = 0});
  return run.get(c.type, out, out_elems);
}

void check_gated(const gpu::KernelId<GatedMulArgs>& id) {
  std::mt19937 random(21);
  for (const ElementType type : kAllTypes) {
    for (const auto& [width, in_gap, out_gap] : std::vector<std::array<std::uint32_t, 3>>{
             {1, 0, 0}, {7, 1, 2}, {8, 0, 0}, {64, 64, 0}, {65, 0, 7}, {576, 8, 16}, {4099, 5, 0}}) {
      const GatedCase c{.rows = 5, .width = width, .in_gap = in_gap, .out_gap = out_gap, .type = type};
      const std::size_t count = std::size_t{c.rows} * (width + in_gap);
      const Elements gate(type, with_odd_values(random, random_normal(random, count, 8.0F)));
      const Elements up(type, with_odd_values(random, random_normal(random, count)));

      const Elements expected = run_gated(cpu_backend(), id, c, gate, up);
      const Elements actual = run_gated(cuda_backend(), id, c, gate, up);

      // exp is the CPU's own polynomial, so the bits are too.
      expect_same(actual, expected, std::string(to_string(type)) + ", width " + std::to_string(width));
    }
  }
}

TEST(CudaSiluMul, HasTheBitsOfTheCpu) {
  check_gated(kSiluMul);
}

TEST(CudaGeluTanhMul, HasTheBitsOfTheCpu) {
  check_gated(kGeluTanhMul);
}

TEST(CudaSiluMul, ReachesRowsBeyondTwoGibibytes) {
  constexpr std::uint32_t kWidth = 40;
  constexpr std::uint32_t kStride = 1U << 20;
  constexpr std::uint32_t kRows = 1100;
  std::mt19937 random(22);
  const Elements gate(ElementType::kBf16, random_normal(random, kWidth));
  const Elements up(ElementType::kBf16, random_normal(random, kWidth));
  const Elements expected =
      run_gated(cpu_backend(), kSiluMul, {.rows = 1, .width = kWidth, .type = ElementType::kBf16}, gate, up);
  gpu::GpuBackend& gpu = cuda_backend();
  DeviceRun run(gpu);
  BigBuffer gates(gpu, std::uint64_t{kRows} * kStride * 2);
  const std::uint64_t last = std::uint64_t{kRows - 1} * kStride * 2;
  ASSERT_GT(last, kBeyond31Bits);
  gates.put(last, gate.bytes());
  gates.put(last + 1024, up.bytes());

  const std::uint64_t out = run.room(std::size_t{kRows} * kWidth * 2);
  run.run(kSiluMul, GatedMulArgs{.rows = run.put(kRows),
                                 .gate = gates.address(),
                                 .up = gates.address() + 1024,
                                 .out = out,
                                 .max_rows = kRows,
                                 .width = kWidth,
                                 .in_stride = kStride,
                                 .out_stride = kWidth,
                                 .type = ElementType::kBf16,
                                 .reserved = 0});

  expect_same(run.get(ElementType::kBf16, out + std::uint64_t{kRows - 1} * kWidth * 2, kWidth), expected,
              "last row");
}

Elements run_residual(gpu::GpuBackend& gpu, std::uint32_t rows, std::uint32_t width, const Elements& in,
                      const Elements& accum) {
  DeviceRun run(gpu);
  const std::uint64_t sum = run.put(accum);
  run.run(kResidualAdd, ResidualAddArgs{.rows = run.put(rows),
                                        .in = run.put(in),
                                        .accum = sum,
                                        .max_rows = rows + 1,
                                        .width = width,
                                        .in_type = in.type(),
                                        .reserved = 0});
  return run.get(ElementType::kF32, sum, accum.size());
}

TEST(CudaResidualAdd, HasTheBitsOfTheCpuAndLeavesLaterRowsAlone) {
  std::mt19937 random(23);
  for (const ElementType type : kAllTypes) {
    for (const std::uint32_t width : {1U, 7U, 8U, 17U, 576U, 2048U, 2057U}) {
      const Elements in(type, with_odd_values(random, random_normal(random, std::size_t{4} * width)));
      const Elements accum(ElementType::kF32, random_normal(random, std::size_t{5} * width));

      const Elements expected = run_residual(cpu_backend(), 4, width, in, accum);
      const Elements actual = run_residual(cuda_backend(), 4, width, in, accum);

      expect_same(actual, expected, std::string(to_string(type)) + ", width " + std::to_string(width));
    }
  }
}

TEST(CudaResidualAdd, ReachesRowsBeyondTwoGibibytes) {
  constexpr std::uint32_t kWidth = 1U << 16;
  constexpr std::uint32_t kRows = 8210;
  std::mt19937 random(24);
  gpu::GpuBackend& gpu = cuda_backend();
  DeviceRun run(gpu);
  const auto in = random_normal(random, kWidth);
  const auto accum = random_normal(random, kWidth);
  BigBuffer ins(gpu, std::uint64_t{kRows} * kWidth * 4);
  BigBuffer sums(gpu, std::uint64_t{kRows} * kWidth * 4);
  const std::uint64_t last = std::uint64_t{kRows - 1} * kWidth * 4;
  ASSERT_GT(last, kBeyond31Bits);
  ins.put(last, in);
  sums.put(last, accum);

  run.run(kResidualAdd, ResidualAddArgs{.rows = run.put(kRows),
                                        .in = ins.address(),
                                        .accum = sums.address(),
                                        .max_rows = kRows,
                                        .width = kWidth,
                                        .in_type = ElementType::kF32,
                                        .reserved = 0});

  std::vector<float> expected(kWidth);
  for (std::size_t i = 0; i < kWidth; ++i) expected[i] = accum[i] + in[i];
  EXPECT_EQ(run.get<float>(sums.address() + last, kWidth), expected);
}

TEST(CudaResidualAdd, ReportsMoreRowsThanTheLaunchWasMadeFor) {
  OwnBackend own;
  own.expect_fault(kResidualAdd,
                   ResidualAddArgs{.rows = own.run.put(5U),
                                   .in = own.run.room(64),
                                   .accum = own.run.room(64),
                                   .max_rows = 4,
                                   .width = 4,
                                   .in_type = ElementType::kF32,
                                   .reserved = 0},
                   "5 rows in this step");
}

}  // namespace
}  // namespace metrale::kernels
