// SPDX-License-Identifier: Apache-2.0
// linear and linear_fp8 on the device where a library computes them: parity with the double model and with
// the CPU, rows that do not depend on each other at the shapes of real models, and capture.
#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>

#include <gtest/gtest.h>

#include <metrale/gpu/stream.h>
#include <metrale/kernels/cuda_kernels.h>
#include <metrale/kernels/cutlass.h>
#include <metrale/kernels/linear_fp8.h>

#include "cuda/support/device_run.h"
#include "cuda/support/devices.h"
#include "kernels/support/linear_case.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;

constexpr std::uint32_t kWorkspaceBytes = 32U << 20;

LinearArgs linear_args(const LinearCase& c) {
  return {.rows = 0,
          .in = 0,
          .weight = 0,
          .bias = 0,
          .out = 0,
          .max_rows = c.rows,
          .in_features = c.in_features,
          .out_features = c.out_features,
          .in_stride = c.in_stride(),
          .out_stride = c.out_stride(),
          .in_type = c.in_type,
          .weight_type = c.weight_type,
          .out_type = c.out_type};
}

std::string name(const LinearCase& c) {
  return std::to_string(c.rows) + " rows, " + std::to_string(c.in_features) + " to " +
         std::to_string(c.out_features) + ", " + std::string(to_string(c.in_type)) + " x " +
         std::string(to_string(c.weight_type)) + " -> " + std::string(to_string(c.out_type)) +
         (c.bias ? " with bias" : "");
}

// Every 7th output of every row.
void expect_model(const LinearCase& c, const LinearData& data, const Elements& out) {
  for (std::uint32_t row = 0; row < c.rows; ++row) {
    for (std::uint32_t o = row % 7; o < c.out_features; o += 7) {
      const LinearModel model = model_linear(c, data, row, o);
      // Twice: matrix units may cut off where others round.
      ASSERT_NEAR(double{out.get(std::size_t{row} * c.out_stride() + o)}, model.value, 2 * model.tolerance)
          << name(c) << ": row " << row << ", output " << o;
    }
  }
}

Elements run_on(gpu::GpuBackend& gpu, const LinearCase& c, const LinearData& data,
                const gpu::KernelId<LinearArgs>& id) {
  DeviceRun run(gpu);
  LinearArgs args = linear_args(c);
  args.rows = run.put(c.rows);
  args.in = run.put(data.in);
  args.weight = run.put(data.weight);
  if (c.bias) args.bias = run.put(data.bias);
  const std::size_t count = std::size_t{c.rows} * c.out_stride();
  args.out = run.room(count * quant::element_bytes(c.out_type));
  args.workspace = run.room(kWorkspaceBytes);
  args.workspace_bytes = kWorkspaceBytes;
  run.run(id, args);
  return run.get(c.out_type, args.out, count);
}

Elements run_on_device(const LinearCase& c, const LinearData& data, const gpu::KernelId<LinearArgs>& id) {
  return run_on(cuda_backend(), c, data, id);
}

class LinearLibrary : public testing::TestWithParam<gpu::KernelId<LinearArgs>> {};

// The library adds in another order than the embedded kernels, and so shows in the bits of long sums.
TEST_P(LinearLibrary, ComputesTheLayersOfModelsItself) {
  runtime::BackendOptions options = test::cuda_options();
  if (options.cublaslt == "") GTEST_SKIP() << "run without the library";
  options.cublaslt = "";
  const std::unique_ptr<gpu::GpuBackend> embedded = runtime::open_backend(options);
  std::mt19937 random(80);
  for (const ElementType type : {ElementType::kBf16, ElementType::kF16}) {
    LinearCase c{.rows = 64, .in_features = 4096, .out_features = 192};
    c.in_type = c.weight_type = type;
    c.out_type = ElementType::kF32;
    const LinearData data = random_linear(random, c);

    const Elements by_library = run_on_device(c, data, GetParam());
    const Elements by_kernels = run_on(*embedded, c, data, GetParam());

    EXPECT_FALSE(std::ranges::equal(by_library.bytes(), by_kernels.bytes())) << name(c);
  }
}

TEST_P(LinearLibrary, AgreesWithTheModelForEveryMixOfTypes) {
  std::mt19937 random(81);
  for (const ElementType in : kAllTypes) {
    for (const ElementType weight : kAllTypes) {
      for (const ElementType out : kAllTypes) {
        for (const bool bias : {false, true}) {
          for (const std::uint32_t rows : {1U, 5U, 64U, 130U}) {
            LinearCase c{.rows = rows, .in_features = 576, .out_features = 192, .bias = bias};
            c.in_type = in;
            c.weight_type = weight;
            c.out_type = out;
            c.in_gap = 16;
            c.out_gap = 8;
            const LinearData data = random_linear(random, c);
            expect_model(c, data, run_on_device(c, data, GetParam()));
          }
        }
      }
    }
  }
}

TEST_P(LinearLibrary, AgreesWithTheModelForShapesThatNoLibraryLikes) {
  std::mt19937 random(82);
  for (const std::uint32_t in_features : {1U, 7U, 33U, 250U}) {
    for (const std::uint32_t out_features : {1U, 3U, 65U}) {
      for (const ElementType type : kAllTypes) {
        LinearCase c{.rows = 9, .in_features = in_features, .out_features = out_features};
        c.in_type = c.weight_type = c.out_type = type;
        c.bias = out_features == 3;
        const LinearData data = random_linear(random, c);
        expect_model(c, data, run_on_device(c, data, GetParam()));
      }
    }
  }
}

TEST_P(LinearLibrary, IsCapturedBeforeItsFirstUseAndReplays) {
  std::mt19937 random(83);
  // A shape of this test alone: its plan is made while the stream captures.
  LinearCase c{
      .rows = 5, .in_features = 608, .out_features = GetParam().function == kLinear.function ? 592U : 624U};
  c.in_type = c.weight_type = c.out_type = ElementType::kBf16;
  const LinearData data = random_linear(random, c);
  gpu::GpuBackend& gpu = cuda_backend();
  DeviceRun run(gpu);
  LinearArgs args = linear_args(c);
  args.rows = run.put(c.rows);
  args.in = run.room(data.in.bytes().size());
  args.weight = run.put(data.weight);
  args.out = run.room(std::size_t{c.rows} * c.out_features * 2);
  args.workspace = run.room(kWorkspaceBytes);
  args.workspace_bytes = kWorkspaceBytes;
  const gpu::Stream stream = gpu::make_stream(gpu);
  gpu::CaptureScope capture(gpu, stream.ref());
  gpu::launch(gpu, GetParam(), stream.ref(), args);
  const gpu::Graph graph = capture.finish();
  for (int round = 0; round < 3; ++round) {
    const LinearData fresh = random_linear(random, c);
    gpu.copy_h2d_blocking(DevicePtr(args.in), std::span(fresh.in.bytes()));

    gpu.launch_graph(graph.ref(), stream.ref());
    gpu.synchronize(stream.ref());

    expect_model(c, {fresh.in, data.weight, data.bias},
                 run.get(ElementType::kBf16, args.out, std::size_t{c.rows} * c.out_features));
  }
}

TEST(LinearLibraryLife, BackendsThatComeAndGoLeaveDeviceMemoryAsItWas) {
  std::mt19937 random(86);
  LinearCase c{.rows = 33, .in_features = 4096, .out_features = 192};
  c.in_type = c.weight_type = c.out_type = ElementType::kBf16;
  const LinearData data = random_linear(random, c);
  // It keeps the context, so that only what a backend leaves in it counts.
  gpu::GpuBackend& watcher = cuda_backend();
  std::uint64_t free_after_two = 0;
  for (int cycle = 1; cycle <= 20; ++cycle) {
    auto gpu = test::open_cuda();
    static_cast<void>(run_on(*gpu, c, data, kLinear));
    static_cast<void>(run_on(*gpu, c, data, kLinearFast));
    gpu.reset();
    if (cycle == 2) free_after_two = watcher.device_free_memory_bytes();
  }
  EXPECT_EQ(watcher.device_free_memory_bytes(), free_after_two);
}

INSTANTIATE_TEST_SUITE_P(Orders, LinearLibrary, testing::Values(kLinear, kLinearFast),
                         [](const testing::TestParamInfo<gpu::KernelId<LinearArgs>>& id) {
                           return id.param.function == kLinear.function ? "Exact" : "Fast";
                         });

// Numbers between 2^-4 and 2^-2 of both signs as words of a format with `base` for 2^-4 and `mask` over the
// mantissa and the last bit of the exponent; quick, because some matrices have half a billion.
template <class Word>
std::vector<Word> quick_words(std::uint64_t seed, std::size_t count, std::uint32_t base, std::uint32_t mask) {
  std::vector<Word> values(count);
  for (Word& value : values) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    const auto bits = static_cast<std::uint32_t>(seed >> 32);
    const std::uint32_t sign = (bits >> 31) << (8 * sizeof(Word) - 1);
    value = static_cast<Word>((base + (bits & mask)) | sign);
  }
  return values;
}

std::uint64_t put_quick(DeviceRun& run, ElementType type, std::uint64_t seed, std::size_t count) {
  switch (type) {
    case ElementType::kBf16:
      return run.put(quick_words<std::uint16_t>(seed, count, 0x3D80, 0xFF));
    case ElementType::kF16:
      return run.put(quick_words<std::uint16_t>(seed, count, 0x2C00, 0x7FF));
    case ElementType::kF32:
      return run.put(quick_words<std::uint32_t>(seed, count, 0x3D800000, 0xFFFFFF));
  }
  return 0;
}

constexpr std::uint32_t kManyRows = 1000;

// `rows_at(first, rows)` computes so many of kManyRows rows and returns their bytes.
template <class RowsAt>
void expect_rows_alone_as_together(const RowsAt& rows_at, std::size_t row_bytes) {
  const std::vector<std::byte> all = rows_at(0U, kManyRows);
  const auto expect_rows = [&](std::uint32_t first, std::uint32_t rows) {
    const std::vector<std::byte> some = rows_at(first, rows);
    for (std::uint32_t row = 0; row < rows; ++row) {
      ASSERT_EQ(std::memcmp(&some[row * row_bytes], &all[(first + row) * row_bytes], row_bytes), 0)
          << "row " << first + row << " of " << kManyRows << " is another one as row " << row << " of "
          << rows;
    }
  };

  for (const std::uint32_t rows : {1U, 2U, 3U, 8U, 16U, 17U, 33U, 64U, 100U, 128U, 300U, 512U}) {
    expect_rows(0, rows);
  }
  for (const std::uint32_t first : {1U, 31U, 130U, 999U}) expect_rows(first, 1);
  expect_rows(500, 37);
}

struct RealShape {
  const char* name;
  std::uint32_t out_features;
  std::uint32_t in_features;
  ElementType out_type = ElementType::kBf16;
  ElementType type = ElementType::kBf16;  // of both operands and of the bias
  bool bias = false;
  std::uint32_t in_gap = 0;
};

class LinearLibraryShapes : public testing::TestWithParam<RealShape> {};

TEST_P(LinearLibraryShapes, GivesARowTheSameBitsForEveryNumberOfRows) {
  const RealShape& shape = GetParam();
  LinearCase c{.rows = kManyRows, .in_features = shape.in_features, .out_features = shape.out_features};
  c.in_type = c.weight_type = shape.type;
  c.out_type = shape.out_type;
  c.in_gap = shape.in_gap;
  DeviceRun run(cuda_backend());
  LinearArgs args = linear_args(c);
  args.in = put_quick(run, shape.type, 1, std::size_t{kManyRows} * c.in_stride());
  args.weight = put_quick(run, shape.type, 2, std::size_t{c.out_features} * c.in_features);
  if (shape.bias) args.bias = put_quick(run, shape.type, 3, c.out_features);
  const std::size_t row_bytes = std::size_t{c.out_features} * quant::element_bytes(c.out_type);
  args.out = run.room(kManyRows * row_bytes);
  args.workspace = run.room(kWorkspaceBytes);
  args.workspace_bytes = kWorkspaceBytes;

  bool has_room = false;
  const auto rows_at = [&](std::uint32_t first, std::uint32_t rows) {
    LinearArgs some = args;
    some.rows = run.put(rows);
    some.max_rows = rows;
    if (has_room) some.room_rows = kManyRows - first;
    some.in += std::uint64_t{first} * c.in_stride() * quant::element_bytes(c.in_type);
    run.run(kLinear, some);
    return run.get<std::byte>(some.out, rows * row_bytes);
  };
  expect_rows_alone_as_together(rows_at, row_bytes);
  has_room = true;
  expect_rows_alone_as_together(rows_at, row_bytes);
}

std::string name_of(const testing::TestParamInfo<RealShape>& shape) {
  return shape.param.name;
}

// The layers of SmolLM2-135M and of Llama 3 8B with the types and strides that the engine gives them: `down`
// reads the first half of rows that hold gate and up.
INSTANTIATE_TEST_SUITE_P(
    Models, LinearLibraryShapes,
    testing::Values(RealShape{"SmolQkv", 960, 576}, RealShape{"SmolO", 576, 576, ElementType::kF32},
                    RealShape{"SmolGateUp", 3072, 576},
                    RealShape{.name = "SmolDown",
                              .out_features = 576,
                              .in_features = 1536,
                              .out_type = ElementType::kF32,
                              .in_gap = 1536},
                    RealShape{"SmolHead", 49152, 576, ElementType::kF32}, RealShape{"LlamaQkv", 6144, 4096},
                    RealShape{"LlamaO", 4096, 4096, ElementType::kF32}, RealShape{"LlamaGateUp", 28672, 4096},
                    RealShape{.name = "LlamaDown",
                              .out_features = 4096,
                              .in_features = 14336,
                              .out_type = ElementType::kF32,
                              .in_gap = 14336},
                    RealShape{"LlamaHead", 128256, 4096, ElementType::kF32}),
    name_of);

std::vector<RealShape> shapes_of_other_operands() {
  std::vector<RealShape> shapes{{"Bf16BiasSmall", 960, 576, ElementType::kBf16, ElementType::kBf16, true},
                                {"Bf16BiasLarge", 6144, 4096, ElementType::kBf16, ElementType::kBf16, true}};
  for (const auto& [small, large, bias, type] :
       {std::tuple{"F16Small", "F16Large", "F16Bias", ElementType::kF16},
        std::tuple{"F32Small", "F32Large", "F32Bias", ElementType::kF32}}) {
    shapes.push_back({small, 960, 576, type, type});
    shapes.push_back({large, 4096, 4096, ElementType::kF32, type, false, 4096});
    shapes.push_back({bias, 1536, 2048, type, type, true});
  }
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(Operands, LinearLibraryShapes, testing::ValuesIn(shapes_of_other_operands()),
                         name_of);

class LinearLibraryFp8Shapes : public testing::TestWithParam<RealShape> {};

TEST_P(LinearLibraryFp8Shapes, GivesARowTheSameBitsForEveryNumberOfRows) {
  const RealShape& shape = GetParam();
  DeviceRun run(cuda_backend());
  const auto put_codes = [&](std::uint64_t seed, std::uint32_t rows) {
    return run.put(quick_words<std::uint8_t>(seed, std::size_t{rows} * shape.in_features, 0x18, 0xF));
  };
  const std::size_t row_bytes = std::size_t{shape.out_features} * quant::element_bytes(shape.out_type);
  LinearFp8Args args{};
  args.in = put_codes(1, kManyRows);
  args.weight = put_codes(2, shape.out_features);
  args.in_factor = run.put(std::vector<float>{0.75F});
  args.weight_factor = run.put(std::vector<float>{1.5F});
  args.out = run.room(kManyRows * row_bytes);
  args.workspace = run.room(kWorkspaceBytes);
  args.in_features = shape.in_features;
  args.out_features = shape.out_features;
  args.out_stride = shape.out_features;
  args.out_type = shape.out_type;
  args.workspace_bytes = kWorkspaceBytes;

  expect_rows_alone_as_together(
      [&](std::uint32_t first, std::uint32_t rows) {
        LinearFp8Args some = args;
        some.rows = run.put(rows);
        some.max_rows = rows;
        some.in += std::uint64_t{first} * shape.in_features;
        run.run(kLinearFp8, some);
        return run.get<std::byte>(some.out, rows * row_bytes);
      },
      row_bytes);
}

INSTANTIATE_TEST_SUITE_P(Models, LinearLibraryFp8Shapes,
                         testing::Values(RealShape{"SmolQkv", 960, 576},
                                         RealShape{"SmolDown", 576, 1536, ElementType::kF32},
                                         RealShape{"LlamaQkv", 6144, 4096},
                                         RealShape{"LlamaGateUp", 28672, 4096},
                                         RealShape{"LlamaDown", 4096, 14336, ElementType::kF32}),
                         name_of);

struct Fp8Matrix {
  std::vector<std::uint8_t> codes;
  std::vector<float> factor;
};

Fp8Matrix quantize(gpu::GpuBackend& gpu, const Elements& in, std::uint32_t rows, std::uint32_t width) {
  DeviceRun run(gpu);
  QuantizeFp8Args args{};
  args.rows = run.put(rows);
  args.in = run.put(in);
  args.out = run.room(std::size_t{rows} * width);
  args.factor = run.room(2 * sizeof(float));
  args.max_rows = rows + 3;
  args.width = width;
  args.in_stride = width;
  args.in_type = in.type();
  run.run(kQuantizeFp8, args);
  return {run.get<std::uint8_t>(args.out, std::size_t{rows} * width), run.get<float>(args.factor, 2)};
}

struct Fp8Product {
  std::uint32_t rows;
  std::uint32_t ins;
  std::uint32_t outs;
  ElementType out_type;
};

Elements multiply(gpu::GpuBackend& gpu, const gpu::KernelId<LinearFp8Args>& id, const Fp8Product& p,
                  const Fp8Matrix& in, const Fp8Matrix& weight) {
  DeviceRun run(gpu);
  LinearFp8Args args{};
  args.rows = run.put(p.rows);
  args.in = run.put(in.codes);
  args.in_factor = run.put(in.factor);
  args.weight = run.put(weight.codes);
  args.weight_factor = run.put(weight.factor);
  const std::size_t count = std::size_t{p.rows} * p.outs;
  args.out = run.room(count * quant::element_bytes(p.out_type));
  args.workspace = run.room(kWorkspaceBytes);
  args.max_rows = p.rows;
  args.in_features = p.ins;
  args.out_features = p.outs;
  args.out_stride = p.outs;
  args.out_type = p.out_type;
  args.workspace_bytes = kWorkspaceBytes;
  run.run(id, args);
  return run.get(p.out_type, args.out, count);
}

// ||actual - expected|| / ||expected||; NaN where an element is.
double relative_error(const Elements& actual, const Elements& expected) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{actual.get(i)} - double{expected.get(i)}, 2);
    norm += std::pow(double{expected.get(i)}, 2);
  }
  return std::sqrt(error / norm);
}

TEST(LinearLibraryFp8, QuantizesAsTheCpuDoes) {
  std::mt19937 random(84);
  for (const ElementType type : kAllTypes) {
    for (const auto& [rows, width] :
         std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 16}, {7, 576}, {130, 1000}}) {
      Elements in(type, random_normal(random, std::size_t{rows} * width, 3.0F));
      in.set(3, INFINITY);
      in.set(5, NAN);

      const Fp8Matrix device = quantize(cuda_backend(), in, rows, width);
      const Fp8Matrix host = quantize(cpu_backend(), in, rows, width);

      EXPECT_EQ(device.factor, host.factor);
      EXPECT_EQ(device.codes, host.codes);
    }
  }
}

void expect_cpu_product(const gpu::KernelId<LinearFp8Args>& id, const Fp8Product& p) {
  std::mt19937 random(85);
  gpu::GpuBackend& cpu = cpu_backend();
  const Fp8Matrix in = quantize(
      cpu, Elements(ElementType::kBf16, random_normal(random, std::size_t{p.rows} * p.ins)), p.rows, p.ins);
  const Fp8Matrix weight = quantize(
      cpu, Elements(ElementType::kBf16, random_normal(random, std::size_t{p.outs} * p.ins)), p.outs, p.ins);

  const Elements actual = multiply(cuda_backend(), id, p, in, weight);

  // Hopper's FP8 units add with about 14 bits.
  EXPECT_LT(relative_error(actual, multiply(cpu, kLinearFp8, p, in, weight)), 5e-3)
      << p.rows << " rows, " << p.ins << " to " << p.outs << ", " << to_string(p.out_type);
}

TEST(LinearLibraryFp8, AgreesWithTheCpu) {
  for (const ElementType out_type : {ElementType::kBf16, ElementType::kF32}) {
    for (const std::uint32_t rows : {1U, 16U, 37U, 256U}) {
      expect_cpu_product(kLinearFp8, {rows, 576, 192, out_type});
      expect_cpu_product(kLinearFp8, {rows, 1536, 576, out_type});
    }
  }
}

TEST(LinearLibraryFp8, CutlassAgreesWithTheCpu) {
  if (!has_peer_kernels()) GTEST_SKIP() << "built without METRALE_PEERS";
  if (test::cuda_test_device().path == backends::CudaCodePath::kPortable) {
    GTEST_SKIP() << "it has no portable code";
  }
  for (const std::uint32_t rows : {1U, 16U, 37U, 128U, 300U}) {
    expect_cpu_product(kCutlassLinearFp8, {rows, 16, 16, ElementType::kBf16});
    expect_cpu_product(kCutlassLinearFp8, {rows, 576, 192, ElementType::kBf16});
    expect_cpu_product(kCutlassLinearFp8, {rows, 1552, 592, ElementType::kBf16});
  }
}

}  // namespace
}  // namespace metrale::kernels
