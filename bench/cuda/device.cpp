// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "support/report.h"

namespace metrale::bench {
namespace {

constexpr double kGraphSeconds = 0.01;
constexpr std::size_t kMaxNodes = 2000;
constexpr std::uint64_t kPatternBytes = 32 * kMiB;

std::vector<std::uint16_t> pattern() {
  std::vector<std::uint16_t> values(kPatternBytes / sizeof(std::uint16_t));
  std::uint64_t seed = 1;
  for (std::uint16_t& value : values) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    const auto bits = static_cast<std::uint32_t>(seed >> 40);
    value = static_cast<std::uint16_t>(0x3D80U + (bits & 0xFFU) + ((bits & 0x100U) << 7));
  }
  return values;
}

std::uint64_t inside(const gpu::DeviceBuffer& buffer, std::uint64_t offset, std::uint64_t bytes) {
  if (offset > buffer.size_bytes() || bytes > buffer.size_bytes() - offset) {
    throw InvalidArgument(
        fmt::format("a case wants {} bytes from {} on of {}", bytes, offset, buffer.size_bytes()));
  }
  return buffer.ptr().address() + offset;
}

}  // namespace

Device::Device(const runtime::BackendOptions& options, std::uint64_t noise_bytes, std::uint64_t room_bytes)
    : gpu_(runtime::open_backend(options)),
      stream_(gpu::make_stream(*gpu_)),
      noise_(*gpu_, noise_bytes),
      room_(*gpu_, room_bytes),
      workspace_(*gpu_, gpu_->capabilities().linear_workspace_bytes) {
  fill_with_noise();
}

void Device::fill_with_noise() {
  const std::vector<std::uint16_t> values = pattern();
  std::uint64_t filled = std::min<std::uint64_t>(kPatternBytes, noise_.size_bytes());
  gpu_->copy_h2d_blocking(noise_.ptr(), std::as_bytes(std::span(values)).first(filled));
  while (filled < noise_.size_bytes()) {
    const std::uint64_t bytes = std::min(filled, noise_.size_bytes() - filled);
    gpu_->copy_d2d_blocking(noise_.ptr().offset(filled), noise_.ptr(), bytes);
    filled += bytes;
  }
  gpu_->copy_d2d_blocking(room_.ptr(), noise_.ptr(), std::min(room_.size_bytes(), noise_.size_bytes()));
}

std::uint64_t Device::noise(std::uint64_t offset, std::uint64_t bytes) const {
  return inside(noise_, offset, bytes);
}

std::uint64_t Device::room(std::uint64_t offset, std::uint64_t bytes) const {
  return inside(room_, offset, bytes);
}

void Device::release_memory() {
  noise_.release();
  room_.release();
  workspace_.release();
}

gpu::Graph Device::capture(std::size_t count, std::size_t inputs, const Launch& launch) {
  gpu::CaptureScope scope(*gpu_, stream());
  for (std::size_t i = 0; i < count; ++i) launch(stream(), i % inputs);
  return scope.finish();
}

double Device::replay_seconds(const gpu::Graph& graph, unsigned runs) {
  return median_seconds(runs, [&] {
    gpu_->launch_graph(graph.ref(), stream());
    gpu_->synchronize(stream());
  });
}

double Device::seconds_each(std::size_t inputs, const Launch& launch) {
  gpu::Graph graph = capture(inputs, inputs, launch);
  const double once = replay_seconds(graph, 1) / static_cast<double>(inputs);
  const double wanted = std::min(kGraphSeconds / once, static_cast<double>(kMaxNodes));
  const std::size_t turns = static_cast<std::size_t>(wanted) / inputs;
  const std::size_t count = inputs * std::max<std::size_t>(1, turns);
  if (count != inputs) graph = capture(count, inputs, launch);
  return replay_seconds(graph, kRuns) / static_cast<double>(count);
}

double Device::seconds_of(const std::function<void(gpu::StreamRef stream)>& enqueue) {
  return median_seconds(kRuns, [&] {
    enqueue(stream());
    gpu_->synchronize(stream());
  });
}

}  // namespace metrale::bench
