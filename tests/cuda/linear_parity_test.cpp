// SPDX-License-Identifier: Apache-2.0
// linear on the device against the double-precision model, and against itself over numbers of rows. The body
// is whichever the backend's table holds.
#include <metrale/kernels/linear.h>

#include "cuda/support/parity.h"
#include "kernels/support/linear_case.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;

struct LinearPlaces {
  std::uint64_t in;
  std::uint64_t weight;
  std::uint64_t bias;
  std::uint64_t out;
};

LinearArgs linear_args(DeviceRun& run, const LinearCase& c, const LinearPlaces& at) {
  return {.rows = run.put(c.rows),
          .in = at.in,
          .weight = at.weight,
          .bias = c.bias ? at.bias : 0,
          .out = at.out,
          .max_rows = c.rows + c.spare_rows,
          .in_features = c.in_features,
          .out_features = c.out_features,
          .in_stride = c.in_stride(),
          .out_stride = c.out_stride(),
          .in_type = c.in_type,
          .weight_type = c.weight_type,
          .out_type = c.out_type};
}

// The output with its gaps and spare rows.
Elements run_on_device(const LinearCase& c, const LinearData& data,
                       const gpu::KernelId<LinearArgs>& id = kLinear) {
  DeviceRun run(cuda_backend());
  const Elements before(c.out_type,
                        std::vector<float>(std::size_t{c.rows + c.spare_rows} * c.out_stride(), kUntouched));
  const std::uint64_t out = run.put(before);
  // The rows that are spared may be read.
  std::vector<std::byte> in = data.in.bytes();
  in.resize(std::size_t{c.rows + c.spare_rows} * c.in_stride() * quant::element_bytes(c.in_type));
  run.run(id, linear_args(run, c, {run.put(in), run.put(data.weight), run.put(data.bias), out}));
  return run.get(c.out_type, out, before.size());
}

std::string name(const LinearCase& c) {
  return std::to_string(c.rows) + " rows, " + std::to_string(c.in_features) + " to " +
         std::to_string(c.out_features) + ", " + type_names({c.in_type, c.weight_type, c.out_type});
}

void expect_model(const LinearCase& c, const LinearData& data, const Elements& out) {
  for (std::uint32_t row = 0; row < c.rows + c.spare_rows; ++row) {
    for (std::uint32_t o = 0; o < c.out_stride(); ++o) {
      const float actual = out.get(std::size_t{row} * c.out_stride() + o);
      if (row >= c.rows) continue;  // cuBLASLt computes what lies there too
      if (o >= c.out_features) {
        ASSERT_EQ(actual, kUntouched) << name(c) << ": row " << row << ", output " << o;
        continue;
      }
      const LinearModel model = model_linear(c, data, row, o);
      ASSERT_NEAR(double{actual}, model.value, model.tolerance)
          << name(c) << ": row " << row << ", output " << o;
    }
  }
}

TEST(CudaLinear, AgreesWithTheModelForEveryMixOfTypes) {
  std::mt19937 random(71);
  for (const ElementType in : kAllTypes) {
    for (const ElementType weight : kAllTypes) {
      for (const ElementType out : kAllTypes) {
        for (const std::uint32_t rows : {1U, 3U, 8U, 19U}) {
          LinearCase c{.rows = rows, .in_features = 328, .out_features = 37};
          c.in_type = in;
          c.weight_type = weight;
          c.out_type = out;
          c.bias = rows % 2 == 1;
          c.out_gap = 2;
          const LinearData data = random_linear(random, c);
          expect_model(c, data, run_on_device(c, data));
        }
      }
    }
  }
}

TEST(CudaLinear, AgreesWithTheModelForOddWidthsStridesAndSpareRows) {
  std::mt19937 random(72);
  for (const ElementType in : kAllTypes) {
    for (const ElementType weight : kAllTypes) {
      for (const std::uint32_t in_features : {1U, 4U, 7U, 8U, 33U, 256U, 257U}) {
        for (const auto& [rows, spare] :
             std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 0}, {5, 0}, {2, 30}, {17, 3}}) {
          LinearCase c{.rows = rows, .in_features = in_features, .out_features = 9};
          c.in_type = in;
          c.weight_type = weight;
          c.out_type = ElementType::kF32;
          c.bias = true;
          c.in_gap = in_features % 3;
          c.out_gap = 1;
          c.spare_rows = spare;
          const LinearData data = random_linear(random, c);
          expect_model(c, data, run_on_device(c, data));
        }
      }
    }
  }
}

// A row among others has the bits of the row alone.
void expect_rows_alone(LinearCase c, const gpu::KernelId<LinearArgs>& id) {
  std::mt19937 random(73);
  c.rows = 100;
  const LinearData all = random_linear(random, c);
  std::vector<std::vector<std::byte>> alone;
  for (std::uint32_t row = 0; row < c.rows; ++row) {
    LinearCase single = single_row(c);
    if (c.in_type == c.weight_type) {  // perhaps cuBLASLt's, whose algorithm belongs to the strides
      single.in_gap = c.in_gap;
      single.out_gap = c.out_gap;
    }
    alone.push_back(linear_row(single, run_on_device(single, single_row(c, all, row), id), 0));
  }
  for (const std::uint32_t rows : {1U, 2U, 3U, 7U, 8U, 9U, 16U, 33U, 100U}) {
    for (const std::uint32_t spare : {0U, 40U}) {
      LinearCase some = c;
      some.rows = rows;
      some.spare_rows = spare;
      const Elements out = run_on_device(some, all, id);
      for (std::uint32_t row = 0; row < rows; ++row) {
        ASSERT_EQ(linear_row(some, out, row), alone[row]) << name(some) << ": row " << row;
      }
    }
  }
}

TEST(CudaLinear, GivesARowTheSameBitsInEveryBatch) {
  for (const ElementType in : kAllTypes) {
    for (const ElementType weight : kAllTypes) {
      expect_rows_alone({.in_features = 776, .out_features = 21, .in_type = in, .weight_type = weight},
                        kLinear);
    }
  }
}

TEST(CudaLinear, GivesARowTheSameBitsInEveryBatchForOddWidthsAndStrides) {
  // Alone a row is aligned for whole pieces, in the batch it is not.
  for (const ElementType weight : kAllTypes) {
    expect_rows_alone(
        {.in_features = 328, .out_features = 11, .weight_type = weight, .bias = true, .in_gap = 1}, kLinear);
    expect_rows_alone({.in_features = 333,
                       .out_features = 11,
                       .in_type = ElementType::kBf16,
                       .weight_type = weight,
                       .out_gap = 3},
                      kLinear);
  }
}

TEST(CudaLinearFast, AgreesWithTheModel) {
  std::mt19937 random(74);
  for (const ElementType type : kAllTypes) {
    for (const std::uint32_t rows : {1U, 16U, 65U}) {
      LinearCase c{.rows = rows, .in_features = 512, .out_features = 64, .bias = true};
      c.in_type = c.weight_type = c.out_type = type;
      const LinearData data = random_linear(random, c);
      expect_model(c, data, run_on_device(c, data, kLinearFast));
    }
  }
}

TEST(CudaLinear, ReachesWeightsBeyondTwoGibibytes) {
  constexpr std::uint32_t kLast = 8;  // outputs that are compared
  std::mt19937 random(75);
  LinearCase c{.rows = 2, .in_features = 16'384, .out_features = kLast};
  c.in_type = c.weight_type = ElementType::kBf16;
  const LinearData data = random_linear(random, c);
  LinearCase big = c;
  big.out_features = static_cast<std::uint32_t>(kBeyond31Bits / 2 / c.in_features) + 1 + kLast;
  gpu::GpuBackend& gpu = cuda_backend();
  BigBuffer weights(gpu, std::uint64_t{big.out_features} * big.in_features * 2);
  weights.put(std::uint64_t{big.out_features - kLast} * big.in_features * 2, data.weight.bytes());
  for (const std::uint32_t spare : {0U, 30U}) {
    big.spare_rows = spare;
    DeviceRun run(gpu);
    const std::uint64_t out = run.room(std::size_t{c.rows + spare} * big.out_features * 4);

    run.run(kLinear, linear_args(run, big, {run.put(data.in), weights.address(), 0, out}));

    for (std::uint32_t row = 0; row < c.rows; ++row) {
      const auto end = run.get<float>(out + (std::uint64_t{row + 1} * big.out_features - kLast) * 4, kLast);
      for (std::uint32_t o = 0; o < kLast; ++o) {
        const LinearModel model = model_linear(c, data, row, o);
        EXPECT_NEAR(double{end[o]}, model.value, model.tolerance) << "row " << row << ", output " << o;
      }
    }
  }
}

TEST(CudaLinear, RefusesAStrideBelowTheFeatures) {
  DeviceRun run(cuda_backend());
  LinearArgs args = linear_args(run, {.in_features = 8, .out_features = 8}, {0, 0, 0, 0});
  args.in_stride = 7;
  EXPECT_THROW(run.run(kLinear, args), InvalidArgument);
}

TEST(CudaLinear, ReportsMoreRowsThanTheLaunchWasMadeFor) {
  OwnBackend own;
  const LinearCase c{.rows = 5, .in_features = 8, .out_features = 8};
  const std::uint64_t room = own.run.room(1024);
  LinearArgs args = linear_args(own.run, c, {room, room, 0, own.run.room(1024)});
  args.max_rows = 4;
  own.expect_fault(kLinear, args, "5 rows in this step");
}

}  // namespace
}  // namespace metrale::kernels
