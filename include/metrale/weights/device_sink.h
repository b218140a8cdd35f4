// SPDX-License-Identifier: Apache-2.0
// DeviceSink: the pieces of a load copied into device memory that is there already, converted on the way
// where a tensor asks for it. Staging memory is page-locked; a chunk is free once the device has copied it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <metrale/base/device_ptr.h>
#include <metrale/base/thread_pool.h>
#include <metrale/gpu/backend.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/stream.h>
#include <metrale/weights/copy_run.h>
#include <metrale/weights/loader.h>

namespace metrale::weights {

// Where the bytes of a load go.
struct TensorTarget {
  DevicePtr address;
  // Writes `out`, the elements that begin with the load's element `first`, from `in`. Called from several
  // threads for different elements. Empty: the bytes as they are.
  std::function<void(std::uint64_t first, std::span<const std::byte> in, std::span<std::byte> out)> convert;
  std::uint32_t in_element_bytes = 1;   // where there is `convert`
  std::uint32_t out_element_bytes = 1;  // likewise
};

class DeviceSink final : public PieceSink {
 public:
  // One target for each load, in their order; their memory lives until finish(). The backend outlives it.
  // Where device memory is the host's, tensors without `convert` are read into it directly if they are as
  // aligned there as in their files (file_layout() sees to that). Throws as the backend's create_stream.
  DeviceSink(gpu::GpuBackend& gpu, std::vector<TensorTarget> targets);
  // Waits for what was enqueued.
  ~DeviceSink() override;
  DeviceSink(const DeviceSink&) = delete;
  DeviceSink& operator=(const DeviceSink&) = delete;

 private:
  // Converted elements on their way.
  struct Converted {
    gpu::PinnedBuffer memory;
    gpu::Event event;
    bool is_used = false;
  };

  [[nodiscard]] RingShape do_wanted_ring(LoadPath used) const override;
  [[nodiscard]] std::span<std::byte> do_staging(std::size_t bytes) override;
  [[nodiscard]] std::byte* do_place(std::size_t load, std::uint64_t bytes) const override;
  [[nodiscard]] bool do_wants_order() const override { return false; }
  void do_take(const Piece& piece) override;
  void do_end_chunk(std::size_t chunk) override;
  [[nodiscard]] bool do_is_free(std::size_t chunk, bool wait) override;
  void do_finish() override;
  void convert(const TensorTarget& target, const Piece& piece);
  void enqueue_run();
  Converted& next_converted();
  [[nodiscard]] gpu::StreamRef stream() const { return streams_[current_].ref(); }

  gpu::GpuBackend& gpu_;
  bool is_host_;  // device memory is the host's
  std::vector<TensorTarget> targets_;
  std::optional<ThreadPool> pool_;  // once something is converted
  gpu::PinnedBuffer staging_;
  // Chunks take turns: where device memory is the host's, a stream copies with one thread.
  std::vector<gpu::Stream> streams_;
  std::size_t current_ = 0;               // of streams_
  std::vector<gpu::Event> chunk_events_;  // empty until a chunk is used
  CopyRun run_;                           // of the chunk whose pieces come; copied next
  std::vector<Converted> converted_;
  std::size_t turn_ = 0;
};

}  // namespace metrale::weights
