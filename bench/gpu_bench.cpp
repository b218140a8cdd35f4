// SPDX-License-Identifier: Apache-2.0
// What the backend line costs on the CPU: enqueueing and running kernels that do nothing, replaying graphs of
// them, and passing the baton between streams.
// bench-deps: gpu backends
#include <span>
#include <vector>

#include <metrale/backends/cpu.h>
#include <metrale/gpu/kernel.h>
#include <metrale/gpu/stream.h>

#include "support/report.h"

namespace metrale {
namespace {

constexpr int kRuns = 31;
constexpr std::size_t kLaunches = 10'000;
constexpr std::size_t kNodes = 300;
constexpr std::size_t kHops = 1000;

// As large as the arguments of an attention kernel.
struct EmptyArgs {
  std::uint64_t words[16];
};
constexpr gpu::KernelId<EmptyArgs> kEmpty{"bench", "empty"};
gpu::LaunchShape launch_shape(const EmptyArgs&) {
  return {};
}
void empty(ThreadPool&, const EmptyArgs&) {}

void measure_launches(bench::Report& report, gpu::GpuBackend& gpu) {
  const gpu::BoundKernel<EmptyArgs> bound(gpu, kEmpty);
  const gpu::StreamRef stream = gpu.default_stream();
  const EmptyArgs args{};
  const double bound_seconds = bench::median_seconds(kRuns, [&] {
    for (std::size_t i = 0; i < kLaunches; ++i) bound(stream, args);
    gpu.synchronize(stream);
  });
  report.add({.name = "10,000 empty kernels, bound, one wait",
              .metric = "time a kernel",
              .value = bound_seconds / kLaunches * 1e6,
              .unit = "us"});
  const double typed_seconds = bench::median_seconds(kRuns, [&] {
    for (std::size_t i = 0; i < kLaunches; ++i) gpu::launch(gpu, kEmpty, stream, args);
    gpu.synchronize(stream);
  });
  report.add({.name = "10,000 empty kernels by name, one wait",
              .metric = "time a kernel",
              .value = typed_seconds / kLaunches * 1e6,
              .unit = "us"});
}

void measure_graph(bench::Report& report, gpu::GpuBackend& gpu) {
  const gpu::BoundKernel<EmptyArgs> bound(gpu, kEmpty);
  const gpu::StreamRef stream = gpu.default_stream();
  gpu::CaptureScope capture(gpu, stream);
  for (std::size_t i = 0; i < kNodes; ++i) bound(stream, EmptyArgs{});
  const gpu::Graph graph = capture.finish();
  const double seconds = bench::median_seconds(kRuns * 10, [&] {
    gpu.launch_graph(graph.ref(), stream);
    gpu.synchronize(stream);
  });
  report.add({.name = "graph of 300 empty kernels, one wait",
              .metric = "time a replay",
              .value = seconds * 1e6,
              .unit = "us"});
}

void measure_round_trip(bench::Report& report, gpu::GpuBackend& gpu) {
  const gpu::BoundKernel<EmptyArgs> bound(gpu, kEmpty);
  const gpu::StreamRef stream = gpu.default_stream();
  const double seconds = bench::median_seconds(kRuns, [&] {
    for (std::size_t i = 0; i < kHops; ++i) {
      bound(stream, EmptyArgs{});
      gpu.synchronize(stream);
    }
  });
  report.add({.name = "one empty kernel and a wait",
              .metric = "time a round trip",
              .value = seconds / kHops * 1e6,
              .unit = "us"});
}

void measure_hops(bench::Report& report, gpu::GpuBackend& gpu) {
  const gpu::BoundKernel<EmptyArgs> bound(gpu, kEmpty);
  const gpu::Stream streams[2] = {gpu::make_stream(gpu), gpu::make_stream(gpu)};
  const gpu::Event event = gpu::make_event(gpu);
  const double seconds = bench::median_seconds(kRuns, [&] {
    for (std::size_t i = 0; i < kHops; ++i) {
      const gpu::StreamRef from = streams[i % 2].ref();
      bound(from, EmptyArgs{});
      gpu.record_event(event.ref(), from);
      gpu.stream_wait_event(streams[(i + 1) % 2].ref(), event.ref());
    }
    gpu.synchronize(streams[0].ref());
    gpu.synchronize(streams[1].ref());
  });
  report.add({.name = "kernel, event, wait on the other stream",
              .metric = "time a hop",
              .value = seconds / kHops * 1e6,
              .unit = "us"});
}

void run(int argc, char** argv) {
  bench::Report report(
      "gpu", "CPU backend, kernels that do nothing with 128 bytes of arguments, warm, medians", argc, argv);
  gpu::CpuKernelTable table;
  table.add<empty>(kEmpty);
  const auto gpu = backends::make_cpu_backend({}, table);
  measure_launches(report, *gpu);
  measure_graph(report, *gpu);
  measure_round_trip(report, *gpu);
  measure_hops(report, *gpu);
  report.write();
}

}  // namespace
}  // namespace metrale

int main(int argc, char** argv) {
  metrale::run(argc, argv);
  return 0;
}
