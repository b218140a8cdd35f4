// SPDX-License-Identifier: Apache-2.0
// CudaBackend: GpuBackend over the driver of one device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <metrale/backends/cuda.h>
#include <metrale/gpu/device_fault.h>
#include <metrale/gpu/handle_table.h>

#include "backends/cuda/host.h"
#include "backends/cuda/kernel_book.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/module_set.h"
#include "backends/cuda/objects.h"
#include "backends/cuda/staging.h"

namespace metrale::backends::cuda {

// The report of a kernel that refused its data, in pinned memory.
class FaultWord {
 public:
  explicit FaultWord(const CudaHost& host);
  ~FaultWord();
  FaultWord(const FaultWord&) = delete;
  FaultWord& operator=(const FaultWord&) = delete;

  [[nodiscard]] std::uint64_t address() const;
  // Throws DeviceError where there is a report; it stays.
  void check() const;

 private:
  const CudaHost& host_;
  gpu::DeviceFault* fault_ = nullptr;
};

class CudaBackend final : public gpu::GpuBackend {
 public:
  // The host's context is current.
  CudaBackend(std::shared_ptr<CudaHost> host, const CudaBackendOptions& options,
              const gpu::CudaKernelTable& kernels);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

 private:
  [[nodiscard]] std::string_view do_name() const override { return "cuda"; }
  [[nodiscard]] gpu::Capabilities do_capabilities() const override;

  [[nodiscard]] DevicePtr do_alloc(std::size_t bytes, CallSite site) override;
  void do_free(DevicePtr ptr) override;
  [[nodiscard]] DevicePtr do_alloc_arena(std::size_t bytes) override;
  void do_free_arena(DevicePtr ptr) override;
  [[nodiscard]] std::span<std::byte> do_alloc_pinned(std::size_t bytes) override;
  void do_free_pinned(std::span<std::byte> memory) override;
  [[nodiscard]] DevicePtr do_device_address_of_pinned(const std::byte* host) override;
  [[nodiscard]] gpu::DeviceRange do_allocation_of(DevicePtr ptr) const override {
    return memory_.book().allocation_of(ptr);
  }
  void do_copy_h2d_blocking(DevicePtr dst, std::span<const std::byte> src) override;
  void do_copy_d2h_blocking(std::span<std::byte> dst, DevicePtr src) override;
  void do_copy_d2d_blocking(DevicePtr dst, DevicePtr src, std::size_t bytes) override;
  void do_memset_blocking(DevicePtr dst, std::uint8_t value, std::size_t bytes) override;
  void do_copy_h2d_async(DevicePtr dst, std::span<const std::byte> src, gpu::StreamRef stream) override;
  void do_copy_h2d_async_retained(DevicePtr dst, std::span<const std::byte> src,
                                  gpu::StreamRef stream) override;
  void do_copy_d2h_async(std::span<std::byte> dst, DevicePtr src, gpu::StreamRef stream) override;
  void do_copy_d2d_async(DevicePtr dst, DevicePtr src, std::size_t bytes, gpu::StreamRef stream) override;
  void do_copy_d2d_2d_async(DevicePtr dst, std::size_t dst_pitch_bytes, DevicePtr src,
                            std::size_t src_pitch_bytes, std::size_t row_bytes, std::size_t rows,
                            gpu::StreamRef stream) override;
  void do_memset_async(DevicePtr dst, std::uint8_t value, std::size_t bytes, gpu::StreamRef stream) override;
  [[nodiscard]] std::uint64_t do_total_memory_bytes() const override { return memory_.total_bytes(); }
  [[nodiscard]] std::uint64_t do_free_memory_bytes() const override { return memory_.free_bytes(); }
  [[nodiscard]] std::uint64_t do_device_free_memory_bytes() const override { return host_->free_bytes(); }
  [[nodiscard]] std::uint32_t do_sm_count() const override { return host_->facts().sm_count; }

  [[nodiscard]] std::uint64_t do_live_bytes() const override { return memory_.book().device.live_bytes(); }
  [[nodiscard]] std::uint64_t do_live_alloc_count() const override {
    return memory_.book().device.live_count();
  }
  [[nodiscard]] std::vector<gpu::AllocationSiteReport> do_alloc_report(
      std::size_t top, std::uint64_t min_bytes) const override {
    return memory_.book().device.report(top, min_bytes);
  }
  std::size_t do_sweep_unreleased() override;
  [[nodiscard]] std::vector<gpu::RedZoneHit> do_scan_red_zones() override;
  void do_poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) override;

  [[nodiscard]] bool do_has_module(std::string_view module) const override { return modules_.has(module); }
  [[nodiscard]] gpu::KernelHandle do_kernel(std::string_view module, std::string_view function) override;
  void do_launch(gpu::KernelHandle kernel, const gpu::LaunchShape& shape, gpu::StreamRef stream,
                 std::span<const std::byte> args) override;
  void do_launch_raw(gpu::KernelHandle kernel, const gpu::LaunchShape& shape, gpu::StreamRef stream,
                     std::span<const gpu::KernelArg> args) override;
  void do_load_module(std::string_view module, std::span<const std::byte> image) override;
  [[nodiscard]] gpu::DeviceRange do_device_symbol(std::string_view module, std::string_view symbol) override;

  [[nodiscard]] gpu::StreamRef do_default_stream() const override { return default_stream_; }
  [[nodiscard]] gpu::StreamRef do_create_stream() override;
  void do_destroy_stream(gpu::StreamRef stream) override;
  void do_synchronize(gpu::StreamRef stream) override;
  void do_bind_to_thread() override;

  void do_begin_capture(gpu::StreamRef stream) override;
  [[nodiscard]] gpu::GraphRef do_end_capture(gpu::StreamRef stream) override;
  [[nodiscard]] bool do_stream_is_capturing(gpu::StreamRef stream) const override;
  void do_abort_capture_if_active(gpu::StreamRef stream) noexcept override;
  void do_launch_graph(gpu::GraphRef graph, gpu::StreamRef stream) override;
  void do_destroy_graph(gpu::GraphRef graph) override;

  [[nodiscard]] gpu::EventRef do_create_event() override;
  void do_destroy_event(gpu::EventRef event) override;
  void do_record_event(gpu::EventRef event, gpu::StreamRef stream) override;
  void do_stream_wait_event(gpu::StreamRef stream, gpu::EventRef event) override;
  void do_event_synchronize(gpu::EventRef event) override;
  [[nodiscard]] bool do_event_query(gpu::EventRef event) override;

  // The context, current until the result goes. Throws DeviceError once it is lost.
  [[nodiscard]] ContextScope enter() const;
  // Calls `enqueue(DriverStream, CudaCapture*)`, which adds one node where the stream is capturing (the
  // capture is null otherwise). `describe()` and `addresses` are for the graph's messages.
  template <class Describe, class Enqueue>
  void submit(gpu::StreamRef stream, const Describe& describe, std::span<const std::uint64_t> addresses,
              const Enqueue& enqueue);
  void finish_transfer(Result enqueued, std::string_view call) const;
  void enqueue_h2d_staged(DevicePtr dst, std::span<const std::byte> src, DriverStream stream);
  void enqueue_h2d_retained(DevicePtr dst, std::span<const std::byte> src, DriverStream stream,
                            CudaCapture* capture);
  void enqueue_d2h(std::span<std::byte> dst, DevicePtr src, DriverStream stream, CudaCapture* capture);
  // Calls `enqueue_part(piece, offset, bytes)` for each part of at most a piece; where that throws, waits for
  // what was enqueued.
  template <class EnqueuePart>
  void in_pieces_or_settle(std::size_t bytes, DriverStream stream, CudaCapture* capture,
                           const EnqueuePart& enqueue_part);
  void hold(StagingPiece& piece, DriverStream stream, CudaCapture* capture);
  void expect_range(DevicePtr ptr, std::uint64_t bytes, const char* what) const;
  void discard(CudaCapture* capture) noexcept;
  void wait_after_launch(const KernelBook::Kernel& kernel, gpu::StreamRef stream);
  [[nodiscard]] std::shared_ptr<CudaEvent> event_for_the_host(gpu::EventRef event) const;

  const std::shared_ptr<CudaHost> host_;
  const gpu::CudaKernelTable table_;
  const bool synchronize_launches_;
  const FaultWord fault_;
  CudaMemory memory_;
  StagingPool staging_;
  ModuleSet modules_;
  KernelBook kernels_;
  CaptureBook captures_;
  gpu::HandleTable<gpu::StreamRef, CudaStream> streams_{"stream"};
  gpu::HandleTable<gpu::EventRef, CudaEvent> events_{"event"};
  gpu::HandleTable<gpu::GraphRef, CudaGraph> graphs_{"graph"};
  gpu::StreamRef default_stream_;
};

template <class Describe, class Enqueue>
void CudaBackend::submit(gpu::StreamRef stream, const Describe& describe,
                         std::span<const std::uint64_t> addresses, const Enqueue& enqueue) {
  const auto target = streams_.find(stream);
  const bool recorded = captures_.record(stream, [&](CudaCapture& capture) {
    enqueue(target->handle(), &capture);
    capture.add(memory_.book(), describe(), addresses);
  });
  if (!recorded) enqueue(target->handle(), nullptr);
}

}  // namespace metrale::backends::cuda
