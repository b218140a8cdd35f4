// SPDX-License-Identifier: Apache-2.0
// What the device can do at most: memory, copies, BF16 products, launches.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <metrale/gpu/cuda_kernel_table.h>
#include <metrale/gpu/kernel.h>
#include <metrale/gpu/kernel_args.h>
#include <metrale/kernels/linear.h>

#include "cuda/cases.h"

namespace metrale::kernels {

gpu::CudaModuleImages bench_limits_images();  // limits.cu

}  // namespace metrale::kernels

namespace metrale::bench {
namespace {

constexpr std::uint64_t kReadBytes = 2 * kGiB;
constexpr std::uint64_t kPinnedBytes = 256 * kMiB;
constexpr std::size_t kNodes = 300;
constexpr std::size_t kLaunches = 10'000;
constexpr std::size_t kRoundTrips = 1000;
constexpr const char* kModule = "bench_limits";

void load_kernels(gpu::GpuBackend& gpu) {
  gpu.load_module(kModule, kernels::bench_limits_images().portable);
}

void launch_nothing(gpu::GpuBackend& gpu, gpu::StreamRef stream) {
  const std::array<gpu::KernelArg, 1> args{DevicePtr{}};
  gpu.launch_raw(gpu.op_cache().kernel(gpu, kModule, "nothing"), {.grid = {1}, .block = {32}}, stream, args);
}

void add_rate(const Bench& bench, const std::string& name, std::uint64_t bytes, double rate) {
  if (!bench.wants(name)) return;
  bench.report.add(
      {.name = name, .metric = "rate", .value = rate / 1e9, .unit = "GB/s", .bytes_moved = bytes});
}

void add_time(const Bench& bench, const std::string& name, const std::string& metric, double seconds) {
  if (!bench.wants(name)) return;
  bench.report.add({.name = name, .metric = metric, .value = seconds * 1e6, .unit = "us"});
}

double read_rate(Bench& bench) {
  constexpr std::uint32_t kThreads = 512;
  gpu::GpuBackend& gpu = bench.device.gpu();
  const gpu::KernelHandle kernel = gpu.op_cache().kernel(gpu, kModule, "read_all");
  const std::uint64_t words = kReadBytes / 16;
  const DevicePtr data(bench.device.noise(0, kReadBytes));
  double best = 0;
  for (const std::uint32_t per_sm : {1U, 2U, 4U, 8U}) {
    const std::uint32_t blocks = gpu.sm_count() * per_sm;
    const DevicePtr sums(bench.device.room(0, std::uint64_t{blocks} * kThreads * 4));
    const std::array<gpu::KernelArg, 3> args{data, std::as_bytes(std::span(&words, 1)), sums};
    const double seconds = bench.device.seconds_each(1, [&](gpu::StreamRef stream, std::size_t) {
      gpu.launch_raw(kernel, {.grid = {blocks}, .block = {kThreads}}, stream, args);
    });
    best = std::max(best, static_cast<double>(kReadBytes) / seconds);
  }
  add_rate(bench, "limit: read of 2 GiB", kReadBytes, best);
  return best;
}

double copy_rate(Bench& bench) {
  const DevicePtr from(bench.device.noise(0, kReadBytes));
  const DevicePtr to(bench.device.room(0, kReadBytes));
  const double seconds = bench.device.seconds_of([&](gpu::StreamRef stream) {
    for (int i = 0; i < 4; ++i) bench.device.gpu().copy_d2d_async(to, from, kReadBytes, stream);
  });
  const double rate = 4 * 2 * static_cast<double>(kReadBytes) / seconds;
  add_rate(bench, "limit: device-to-device copy of 2 GiB, read and written", 2 * kReadBytes, rate);
  return rate;
}

void pinned_rates(Bench& bench) {
  gpu::GpuBackend& gpu = bench.device.gpu();
  const gpu::PinnedBuffer host(gpu, kPinnedBytes);
  const DevicePtr room(bench.device.room(0, kPinnedBytes));
  bench.run("limit: copy of 256 MiB from pinned memory", [&] {
    const double seconds = bench.device.seconds_of(
        [&](gpu::StreamRef stream) { gpu.copy_h2d_async_retained(room, host.span(), stream); });
    add_rate(bench, "limit: copy of 256 MiB from pinned memory", kPinnedBytes,
             static_cast<double>(kPinnedBytes) / seconds);
  });
  bench.run("limit: copy of 256 MiB to pinned memory", [&] {
    const double seconds = bench.device.seconds_of(
        [&](gpu::StreamRef stream) { gpu.copy_d2h_async(host.span(), room, stream); });
    add_rate(bench, "limit: copy of 256 MiB to pinned memory", kPinnedBytes,
             static_cast<double>(kPinnedBytes) / seconds);
  });
}

double matrix_rate(Bench& bench) {
  struct Shape {
    std::uint32_t m, n, k;
  };
  double best = 0;
  Shape best_shape{};
  for (const Shape& s : {Shape{8192, 8192, 8192}, Shape{4096, 16384, 8192}, Shape{8192, 4096, 16384}}) {
    Arrays arrays(bench.device.gpu());
    const kernels::LinearArgs args{.rows = arrays.put(s.m),
                                   .in = bench.device.noise(0, std::uint64_t{s.m} * s.k * 2),
                                   .weight = bench.device.noise(kGiB, std::uint64_t{s.n} * s.k * 2),
                                   .bias = 0,
                                   .out = bench.device.room(0, std::uint64_t{s.m} * s.n * 2),
                                   .max_rows = s.m,
                                   .in_features = s.k,
                                   .out_features = s.n,
                                   .in_stride = s.k,
                                   .out_stride = s.n,
                                   .in_type = quant::ElementType::kBf16,
                                   .weight_type = quant::ElementType::kBf16,
                                   .out_type = quant::ElementType::kBf16,
                                   .workspace = bench.device.workspace().address(),
                                   .workspace_bytes = bench.device.workspace_bytes()};
    const double seconds = bench.device.seconds_each(1, [&](gpu::StreamRef stream, std::size_t) {
      gpu::launch(bench.device.gpu(), kernels::kLinearFast, stream, args);
    });
    const double rate = 2.0 * s.m * s.n * s.k / seconds;
    if (rate > best) best = rate, best_shape = s;
  }
  const std::string name = "limit: BF16 matrix rate of linear_fast";
  if (bench.wants(name)) {
    bench.report.add({.name = name,
                      .metric = fmt::format("rate at {} x {} x {}", best_shape.m, best_shape.n, best_shape.k),
                      .value = best / 1e12,
                      .unit = "TFLOP/s"});
  }
  return best;
}

// An empty kernel of a graph, in seconds.
double launch_times(Bench& bench) {
  Device& device = bench.device;
  gpu::GpuBackend& gpu = device.gpu();
  add_time(bench, "limit: 10,000 empty kernels, one wait", "time a kernel",
           device.seconds_of([&](gpu::StreamRef stream) {
             for (std::size_t i = 0; i < kLaunches; ++i) launch_nothing(gpu, stream);
           }) / kLaunches);
  const gpu::Graph graph =
      device.capture(kNodes, 1, [&](gpu::StreamRef stream, std::size_t) { launch_nothing(gpu, stream); });
  const double replay = device.replay_seconds(graph, 31);
  add_time(bench, "limit: graph of 300 empty kernels, one wait", "time a replay", replay);
  const double trips = median_seconds(Device::kRuns, [&] {
    for (std::size_t i = 0; i < kRoundTrips; ++i) {
      launch_nothing(gpu, device.stream());
      gpu.synchronize(device.stream());
    }
  });
  add_time(bench, "limit: one empty kernel and a wait", "time a round trip", trips / kRoundTrips);
  return device.seconds_each(1, [&](gpu::StreamRef stream, std::size_t) { launch_nothing(gpu, stream); });
}

}  // namespace

Limits measure_limits(Bench& bench) {
  load_kernels(bench.device.gpu());
  Limits limits;
  limits.read = read_rate(bench);
  limits.copy = copy_rate(bench);
  pinned_rates(bench);
  limits.bf16.see(bench.report, matrix_rate(bench));
  limits.empty_seconds = launch_times(bench);
  add_time(bench, "limit: an empty kernel of a graph", "time a kernel", limits.empty_seconds);
  return limits;
}

}  // namespace metrale::bench
