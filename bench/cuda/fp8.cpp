// SPDX-License-Identifier: Apache-2.0
// Products in E4M3: cuBLASLt's beside CUTLASS's at the shapes of Llama-3.1-8B. Many rows are
// held against the best FP8 rate seen.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/gpu/kernel.h>
#include <metrale/kernels/cuda_kernels.h>
#include <metrale/kernels/cutlass.h>
#include <metrale/kernels/linear_fp8.h>

#include "cuda/cases.h"

namespace metrale::bench {
namespace {

using quant::ElementType;

constexpr std::uint32_t kQuantizedWidth = 4096;
constexpr std::uint32_t kQuantizedRows = 131072;  // 512 MiB of codes
constexpr std::uint64_t kCodeBytes = std::uint64_t{kQuantizedRows} * kQuantizedWidth;
constexpr std::uint64_t kWeightCodes = kCodeBytes - 128 * kMiB;  // the rest is for the activations
constexpr std::uint64_t kOutBytes = 2;                           // of a BF16 result
constexpr std::uint64_t kResults = kGiB;                         // where the room for results begins

struct Layer {
  std::uint32_t out_features;
  std::uint32_t in_features;
};
constexpr Layer kLayers[] = {{6144, 4096}, {28672, 4096}, {4096, 14336}};

struct Codes {
  std::uint64_t codes;
  std::uint64_t factor;
};

Codes quantize(Bench& bench, Arrays& arrays) {
  Device& device = bench.device;
  const kernels::QuantizeFp8Args args{.rows = arrays.put(kQuantizedRows),
                                      .in = device.noise(0, 2 * kCodeBytes),
                                      .out = device.room(0, kCodeBytes),
                                      .factor = arrays.room(2 * sizeof(float)),
                                      .max_rows = kQuantizedRows,
                                      .width = kQuantizedWidth,
                                      .in_stride = kQuantizedWidth,
                                      .in_type = ElementType::kBf16};
  gpu::launch(device.gpu(), kernels::kQuantizeFp8, device.stream(), args);
  device.gpu().synchronize(device.stream());
  return {args.out, args.factor};
}

// Of one product; the weights of several in turn exceed the cache.
double seconds_of(Bench& bench, const gpu::KernelId<kernels::LinearFp8Args>& id, const Layer& layer,
                  std::uint32_t rows, const Codes& codes) {
  Device& device = bench.device;
  const std::uint64_t weight_bytes = std::uint64_t{layer.out_features} * layer.in_features;
  const std::size_t layers = std::clamp<std::uint64_t>(kWeightCodes / weight_bytes, 1, rows < 128 ? 64 : 3);
  Arrays arrays(device.gpu());
  kernels::LinearFp8Args args{
      .rows = arrays.put(rows),
      .in = codes.codes + kWeightCodes,
      .in_factor = codes.factor,
      .weight = 0,
      .weight_factor = codes.factor,
      .out = device.room(kResults, std::uint64_t{rows} * layer.out_features * kOutBytes),
      .workspace = device.workspace().address(),
      .max_rows = rows,
      .in_features = layer.in_features,
      .out_features = layer.out_features,
      .out_stride = layer.out_features,
      .out_type = ElementType::kBf16,
      .workspace_bytes = device.workspace_bytes()};
  return device.seconds_each(layers, [&](gpu::StreamRef stream, std::size_t i) {
    args.weight = codes.codes + i * weight_bytes;
    gpu::launch(device.gpu(), id, stream, args);
  });
}

double operations_of(const Layer& layer, std::uint32_t rows) {
  return 2.0 * rows * layer.out_features * layer.in_features;
}

std::vector<gpu::KernelId<kernels::LinearFp8Args>> products() {
  if (!kernels::has_peer_kernels()) return {kernels::kLinearFp8};
  return {kernels::kLinearFp8, kernels::kCutlassLinearFp8};
}

std::string kind_of(const gpu::KernelId<kernels::LinearFp8Args>& id) {
  return id.module == kernels::kLinearFp8.module ? "linear_fp8 cuBLASLt" : "linear_fp8 CUTLASS";
}

void measure_limit(Bench& bench, const Codes& codes) {
  constexpr std::uint32_t kSide = 8192;
  double best = 0;
  std::string best_kind;
  for (const auto& id : products()) {
    try {
      const double rate =
          operations_of({kSide, kSide}, kSide) / seconds_of(bench, id, {kSide, kSide}, kSide, codes);
      if (rate > best) best = rate, best_kind = kind_of(id);
    } catch (const Unsupported&) {
      continue;  // its rows say so
    }
  }
  bench.limits.fp8.see(bench.report, best);
  const std::string name = "limit: FP8 matrix rate";
  if (best == 0 || !bench.wants(name)) return;
  bench.report.add({.name = name,
                    .metric = fmt::format("rate of {} at {} x {} x {}", best_kind, kSide, kSide, kSide),
                    .value = best / 1e12,
                    .unit = "TFLOP/s"});
}

void measure(Bench& bench, const gpu::KernelId<kernels::LinearFp8Args>& id, const Layer& layer,
             std::uint32_t rows, const Codes& codes) {
  const std::string name =
      fmt::format("{} {}x{} rows {}", kind_of(id), layer.out_features, layer.in_features, rows);
  bench.run(name, [&] {
    const double seconds = seconds_of(bench, id, layer, rows, codes);
    if (rows < 128) {
      const std::uint64_t weight_bytes = std::uint64_t{layer.out_features} * layer.in_features;
      const std::uint64_t row_bytes = layer.in_features + std::uint64_t{layer.out_features} * kOutBytes;
      bench.add_read(name, weight_bytes + rows * row_bytes, seconds);
    } else {
      bench.add_products(name, bench.limits.fp8, operations_of(layer, rows), seconds);
    }
  });
}

}  // namespace

void measure_fp8(Bench& bench) {
  constexpr const char* kGroup = "linear_fp8";
  if (!bench.wants(kGroup) && !bench.only.starts_with(kGroup)) return;
  Arrays arrays(bench.device.gpu());
  const Codes codes = quantize(bench, arrays);
  measure_limit(bench, codes);
  if (!kernels::has_peer_kernels()) {
    fmt::print("linear_fp8 CUTLASS is left out: built without METRALE_PEERS\n");
  }
  for (const Layer& layer : kLayers) {
    for (const std::uint32_t rows : {1U, 16U, 64U, 512U, 2048U, 8192U}) {
      for (const auto& id : products()) measure(bench, id, layer, rows, codes);
    }
  }
}

}  // namespace metrale::bench
