// SPDX-License-Identifier: Apache-2.0
// The device under measurement: its backend as the product opens it, memory to compute on, and the time of a
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <metrale/gpu/buffer.h>
#include <metrale/gpu/stream.h>
#include <metrale/runtime/runtime.h>

namespace metrale::bench {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// Enqueues launch number i on the stream.
using Launch = std::function<void(gpu::StreamRef stream, std::size_t i)>;

class Device {
 public:
  // Allocates `noise_bytes` of numbers and `room_bytes` of room for results. Throws as open_backend and
  // OutOfMemory.
  Device(const runtime::BackendOptions& options, std::uint64_t noise_bytes, std::uint64_t room_bytes);

  [[nodiscard]] gpu::GpuBackend& gpu() { return *gpu_; }
  [[nodiscard]] gpu::StreamRef stream() const { return stream_.ref(); }
  // The address of `bytes` bytes from `offset` on: BF16 numbers between 2^-4 and 2^-2 of both signs, which as
  // FP32 are such numbers too; nobody writes there. Throws InvalidArgument beyond the end.
  [[nodiscard]] std::uint64_t noise(std::uint64_t offset, std::uint64_t bytes) const;
  // The same of memory that kernels write, at first a copy of the noise.
  [[nodiscard]] std::uint64_t room(std::uint64_t offset, std::uint64_t bytes) const;
  // Device memory for the linear layers' libraries: what the backend asks for.
  [[nodiscard]] DevicePtr workspace() const { return workspace_.ptr(); }
  [[nodiscard]] std::uint32_t workspace_bytes() const {
    return static_cast<std::uint32_t>(workspace_.size_bytes());
  }
  // Gives back all memory but that of the backend.
  void release_memory();

  // Blocking: seconds of one launch, the median of kRuns replays of a graph. The graph holds the launches
  // 0 … inputs - 1 in turn, so often that a replay takes about ten milliseconds; the inputs together should
  // exceed the device's cache by far.
  static constexpr unsigned kRuns = 7;
  [[nodiscard]] double seconds_each(std::size_t inputs, const Launch& launch);
  // Blocking: the same of work that is enqueued anew each time.
  [[nodiscard]] double seconds_of(const std::function<void(gpu::StreamRef stream)>& enqueue);
  // `count` launches.
  [[nodiscard]] gpu::Graph capture(std::size_t count, std::size_t inputs, const Launch& launch);
  // Blocking: the median of a replay.
  [[nodiscard]] double replay_seconds(const gpu::Graph& graph, unsigned runs);

 private:
  void fill_with_noise();

  std::unique_ptr<gpu::GpuBackend> gpu_;
  gpu::Stream stream_;
  gpu::DeviceBuffer noise_;
  gpu::DeviceBuffer room_;
  gpu::DeviceBuffer workspace_;
};

// Small arrays in device memory: counts, tables, ids.
class Arrays {
 public:
  explicit Arrays(gpu::GpuBackend& gpu) : gpu_(&gpu) {}
  template <class T>
  [[nodiscard]] std::uint64_t put(const std::vector<T>& values) {
    return put_bytes(std::as_bytes(std::span(values)));
  }
  [[nodiscard]] std::uint64_t put(std::uint32_t value) {
    return put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  [[nodiscard]] std::uint64_t room(std::uint64_t bytes) {
    return buffers_.emplace_back(*gpu_, bytes).ptr().address();
  }

 private:
  [[nodiscard]] std::uint64_t put_bytes(std::span<const std::byte> bytes) {
    const std::uint64_t at = room(bytes.size());
    gpu_->copy_h2d_blocking(DevicePtr(at), bytes);
    return at;
  }

  gpu::GpuBackend* gpu_;
  std::vector<gpu::DeviceBuffer> buffers_;
};

}  // namespace metrale::bench
