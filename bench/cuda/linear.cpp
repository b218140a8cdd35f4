// SPDX-License-Identifier: Apache-2.0
// linear, which adds in one order whatever the batch, beside linear_fast at the shapes of Llama-3: few rows
// against the read rate, many against the best BF16 rate seen and against each other.
#include <algorithm>

#include <fmt/format.h>

#include <metrale/gpu/kernel.h>
#include <metrale/kernels/linear.h>

#include "cuda/cases.h"

namespace metrale::bench {
namespace {

using quant::ElementType;

constexpr std::uint64_t kColdBytes = kGiB;  // weights read between two uses
constexpr std::uint32_t kManyRows = 128;    // from so many on the products are the limit
constexpr std::uint64_t kInputOffset = 4 * kGiB;

struct Layer {
  const char* name;
  std::uint32_t out_features;
  std::uint32_t in_features;
  ElementType out_type = ElementType::kBf16;

  [[nodiscard]] std::uint64_t weight_bytes() const { return std::uint64_t{out_features} * in_features * 2; }
  [[nodiscard]] std::uint64_t in_bytes(std::uint32_t rows) const {
    return std::uint64_t{rows} * in_features * 2;
  }
  [[nodiscard]] std::uint64_t out_bytes(std::uint32_t rows) const {
    return std::uint64_t{rows} * out_features * quant::element_bytes(out_type);
  }
  [[nodiscard]] double operations(std::uint32_t rows) const {
    return 2.0 * rows * out_features * in_features;
  }
};
constexpr Layer k8b[] = {{"8B o", 4096, 4096, ElementType::kF32},
                         {"8B qkv", 6144, 4096},
                         {"8B gate_up", 28672, 4096},
                         {"8B down", 4096, 14336, ElementType::kF32},
                         {"8B head", 128256, 4096, ElementType::kF32}};
constexpr Layer k1b[] = {{"1B o", 2048, 2048, ElementType::kF32},
                         {"1B qkv", 3072, 2048},
                         {"1B gate_up", 16384, 2048},
                         {"1B down", 2048, 8192, ElementType::kF32},
                         {"1B head", 128256, 2048, ElementType::kF32}};

double seconds(Device& device, const gpu::KernelId<kernels::LinearArgs>& id, const Layer& layer,
               std::uint32_t rows, std::uint64_t cold_bytes, std::uint64_t in_offset) {
  const std::uint64_t most = rows < kManyRows ? 64 : 4;
  const std::size_t layers = std::clamp<std::uint64_t>(cold_bytes / layer.weight_bytes(), 2, most);
  Arrays arrays(device.gpu());
  kernels::LinearArgs args{.rows = arrays.put(rows),
                           .in = device.noise(in_offset, layer.in_bytes(rows)),
                           .weight = 0,
                           .bias = 0,
                           .out = device.room(0, layer.out_bytes(rows)),
                           .max_rows = rows,
                           .in_features = layer.in_features,
                           .out_features = layer.out_features,
                           .in_stride = layer.in_features,
                           .out_stride = layer.out_features,
                           .in_type = ElementType::kBf16,
                           .weight_type = ElementType::kBf16,
                           .out_type = layer.out_type,
                           .workspace = device.workspace().address(),
                           .workspace_bytes = device.workspace_bytes()};
  return device.seconds_each(layers, [&](gpu::StreamRef stream, std::size_t i) {
    args.weight = device.noise(i * layer.weight_bytes(), layer.weight_bytes());
    gpu::launch(device.gpu(), id, stream, args);
  });
}

std::string describe(const char* kind, const Layer& layer, std::uint32_t rows) {
  return fmt::format("{} {} {}x{} rows {}", kind, layer.name, layer.out_features, layer.in_features, rows);
}

void compare(Bench& bench, const Layer& layer, std::uint32_t rows) {
  const std::string name = describe("linear", layer, rows);
  const std::string fast_name = describe("linear_fast", layer, rows);
  const std::uint64_t bytes = layer.weight_bytes() + layer.in_bytes(rows) + layer.out_bytes(rows);
  const auto time = [&](const gpu::KernelId<kernels::LinearArgs>& id) {
    return seconds(bench.device, id, layer, rows, kColdBytes, kInputOffset);
  };
  if (rows < kManyRows) {
    bench.run(name, [&] { bench.add_read(name, bytes, time(kernels::kLinear)); });
    bench.run(fast_name, [&] { bench.add_read(fast_name, bytes, time(kernels::kLinearFast)); });
    return;
  }
  if (!bench.wants(name) && !bench.wants(fast_name)) return;
  const double fast = layer.operations(rows) / time(kernels::kLinearFast);
  bench.run(fast_name, [&] {
    bench.add_products(fast_name, bench.limits.bf16, layer.operations(rows), layer.operations(rows) / fast);
  });
  bench.run(name, [&] {
    const double rate = layer.operations(rows) / time(kernels::kLinear);
    bench.limits.bf16.see(bench.report, rate);
    bench.report.add({.name = name,
                      .metric = fmt::format("rate of {:.4g} GFLOP", layer.operations(rows) / 1e9),
                      .value = rate / 1e12,
                      .unit = "TFLOP/s",
                      .share_of_limit = rate / fast,
                      .limit = fmt::format("linear_fast here, {:.0f} TFLOP/s", fast / 1e12)});
  });
}

}  // namespace

void measure_linear(Bench& bench) {
  for (const Layer& layer : k8b) {
    for (const std::uint32_t rows : {1U, 16U, 64U, 512U, 2048U, 8192U}) compare(bench, layer, rows);
  }
  for (const Layer& layer : k1b) {
    for (const std::uint32_t rows : {1U, 32U, 512U, 2048U}) compare(bench, layer, rows);
  }
}

void measure_linear_embedded(Bench& bench) {
  constexpr const char* kKind = "linear embedded";
  const auto is_wanted = [&](const Layer& layer) {
    return std::ranges::any_of(std::initializer_list<std::uint32_t>{1, 8, 512},
                               [&](std::uint32_t rows) { return bench.wants(describe(kKind, layer, rows)); });
  };
  const Layer layers[] = {k8b[0], k8b[2]};
  if (std::ranges::none_of(layers, is_wanted)) return;
  runtime::BackendOptions options = bench.options;
  options.cublaslt = "";
  constexpr std::uint64_t kWeights = 768 * kMiB;
  Device device(options, kWeights + 64 * kMiB, 128 * kMiB);
  for (const Layer& layer : layers) {
    for (const std::uint32_t rows : {1U, 8U, 512U}) {
      const std::string name = describe(kKind, layer, rows);
      bench.run(name, [&] {
        const double each = seconds(device, kernels::kLinear, layer, rows, kWeights, kWeights);
        if (rows < kManyRows) {
          bench.add_read(name, layer.weight_bytes() + layer.in_bytes(rows) + layer.out_bytes(rows), each);
        } else {
          bench.add_products(name, bench.limits.bf16, layer.operations(rows), each);
        }
      });
    }
  }
}

}  // namespace metrale::bench
