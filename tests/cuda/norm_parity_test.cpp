// SPDX-License-Identifier: Apache-2.0
// rms_norm on the device against the CPU body: the sums are taken in other orders, so a unit or two in the
// last place of the result may differ.
#include <cmath>

#include <gtest/gtest.h>

#include <metrale/kernels/activation.h>
#include <metrale/kernels/norm.h>

#include "cuda/support/device_run.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;

struct NormShape {
  std::uint32_t rows;
  std::uint32_t width;
  std::uint32_t groups;
  std::uint32_t gap;  // between rows
};

Elements run_norm(gpu::GpuBackend& gpu, const NormShape& shape, const Elements& in, const Elements& weight,
                  ElementType out_type) {
  DeviceRun run(gpu);
  const std::uint32_t stride = shape.width * shape.groups + shape.gap;
  const std::size_t count = std::size_t{shape.rows} * stride;
  const std::uint64_t out = run.room(count * quant::element_bytes(out_type));
  run.run(kRmsNorm, {.rows = run.put(shape.rows),
                     .in = run.put(in),
                     .weight = run.put(weight),
                     .out = out,
                     .max_rows = shape.rows + 3,
                     .width = shape.width,
                     .in_stride = stride,
                     .out_stride = stride,
                     .in_type = in.type(),
                     .weight_type = weight.type(),
                     .out_type = out_type,
                     .epsilon = 1e-5F,
                     .groups = shape.groups});
  return run.get(out_type, out, count);
}

TEST(NormParity, EveryMixOfTypesAgreesWithTheCpu) {
  std::mt19937 random(3);
  for (const NormShape& shape :
       {NormShape{1, 576, 1, 0}, NormShape{5, 4096, 1, 8}, NormShape{3, 64, 9, 40}, NormShape{2, 33, 1, 1}}) {
    for (const ElementType in_type : kAllTypes) {
      for (const ElementType out_type : kAllTypes) {
        const std::size_t stride = std::size_t{shape.width} * shape.groups + shape.gap;
        const Elements in(in_type, random_normal(random, shape.rows * stride));
        const Elements weight(ElementType::kF32, random_normal(random, shape.width));

        const Elements expected = run_norm(cpu_backend(), shape, in, weight, out_type);
        const Elements actual = run_norm(cuda_backend(), shape, in, weight, out_type);

        for (std::size_t i = 0; i < expected.size(); ++i) {
          if (i % stride >= stride - shape.gap) {
            EXPECT_TRUE(std::isnan(actual.get(i))) << "the gap at " << i << " was written";
            continue;
          }
          const double value = expected.get(i);
          ASSERT_NEAR(actual.get(i), value, std::abs(value) * (2e-6 + 2 * rounding_error(out_type)) + 1e-7)
              << "at " << i;
        }
      }
    }
  }
}

TEST(NormParity, ARowsResultDoesNotDependOnTheOthers) {
  std::mt19937 random(4);
  const NormShape many{100, 576, 1, 0};
  const Elements in(ElementType::kF32, random_normal(random, std::size_t{many.rows} * many.width));
  const Elements weight(ElementType::kF32, random_normal(random, many.width));
  const Elements together = run_norm(cuda_backend(), many, in, weight, ElementType::kBf16);

  for (const std::uint32_t row : {0U, 57U, 99U}) {
    const auto all = in.floats();
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(std::size_t{row} * many.width);
    const Elements own(ElementType::kF32, std::vector<float>(first, first + many.width));
    const Elements alone = run_norm(cuda_backend(), {1, many.width, 1, 0}, own, weight, ElementType::kBf16);
    for (std::uint32_t i = 0; i < many.width; ++i) {
      ASSERT_EQ(alone.get(i), together.get(std::size_t{row} * many.width + i));
    }
  }
}

// The engine takes either way, and its results must not tell which. 33: no pieces of eight.
TEST(NormParity, AddRmsNormIsTheSumAndItsNormBitForBit) {
  std::mt19937 random(5);
  constexpr std::uint32_t kRows = 5;
  for (const std::uint32_t width : {33U, 576U, 4096U, 20480U}) {
    const std::size_t count = std::size_t{kRows} * width;
    const Elements branch(ElementType::kF32, random_normal(random, count));
    const Elements residual(ElementType::kF32, random_normal(random, count));
    const Elements weight(ElementType::kF32, random_normal(random, width));
    DeviceRun run(cuda_backend());
    const std::uint64_t rows = run.put(kRows);
    const std::uint64_t in = run.put(branch);
    const std::uint64_t sums = run.put(residual);
    run.run(kResidualAdd, {.rows = rows,
                           .in = in,
                           .accum = sums,
                           .max_rows = kRows,
                           .width = width,
                           .in_type = ElementType::kF32,
                           .reserved = 0});
    const Elements expected_sums = run.get(ElementType::kF32, sums, count);
    const Elements expected =
        run_norm(cuda_backend(), {kRows, width, 1, 0}, expected_sums, weight, ElementType::kBf16);

    const std::uint64_t accum = run.put(residual);
    const std::uint64_t out = run.room(count * quant::element_bytes(ElementType::kBf16));
    run.run(kAddRmsNorm, {.rows = rows,
                          .in = in,
                          .accum = accum,
                          .weight = run.put(weight),
                          .out = out,
                          .max_rows = kRows + 3,
                          .width = width,
                          .out_type = ElementType::kBf16,
                          .epsilon = 1e-5F});

    EXPECT_EQ(run.get(ElementType::kF32, accum, count).bytes(), expected_sums.bytes()) << width;
    EXPECT_EQ(run.get(ElementType::kBf16, out, count).bytes(), expected.bytes()) << width;
  }
}

}  // namespace
}  // namespace metrale::kernels
