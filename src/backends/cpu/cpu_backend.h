// SPDX-License-Identifier: Apache-2.0
// CpuBackend: GpuBackend over host memory, streams as strands of one thread pool, and recorded graphs.
#pragma once

#include <memory>
#include <vector>

#include <metrale/backends/cpu.h>
#include <metrale/gpu/handle_table.h>

#include "backends/cpu/capture.h"
#include "backends/cpu/event.h"
#include "backends/cpu/graph.h"
#include "backends/cpu/host_memory.h"
#include "backends/cpu/scheduler.h"
#include "backends/cpu/stream.h"

namespace metrale::backends::cpu {

class CpuBackend final : public gpu::GpuBackend {
 public:
  CpuBackend(const CpuBackendOptions& options, const gpu::CpuKernelTable& kernels);
  ~CpuBackend() override;
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

 private:
  [[nodiscard]] std::string_view do_name() const override { return "cpu"; }
  [[nodiscard]] gpu::Capabilities do_capabilities() const override;

  [[nodiscard]] DevicePtr do_alloc(std::size_t bytes, CallSite site) override;
  void do_free(DevicePtr ptr) override;
  [[nodiscard]] DevicePtr do_alloc_arena(std::size_t bytes) override;
  void do_free_arena(DevicePtr ptr) override;
  [[nodiscard]] std::span<std::byte> do_alloc_pinned(std::size_t bytes) override;
  void do_free_pinned(std::span<std::byte> memory) override;
  [[nodiscard]] DevicePtr do_device_address_of_pinned(const std::byte* host) override;
  [[nodiscard]] std::span<std::byte> do_host_range(DevicePtr ptr, std::size_t bytes) override;
  [[nodiscard]] gpu::DeviceRange do_allocation_of(DevicePtr ptr) const override;
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
  [[nodiscard]] std::uint32_t do_sm_count() const override;

  [[nodiscard]] std::uint64_t do_live_bytes() const override { return memory_.ledger().live_bytes(); }
  [[nodiscard]] std::uint64_t do_live_alloc_count() const override { return memory_.ledger().live_count(); }
  [[nodiscard]] std::vector<gpu::AllocationSiteReport> do_alloc_report(
      std::size_t top, std::uint64_t min_bytes) const override;
  std::size_t do_sweep_unreleased() override;
  [[nodiscard]] std::vector<gpu::RedZoneHit> do_scan_red_zones() override;
  void do_poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) override;

  [[nodiscard]] bool do_has_module(std::string_view module) const override;
  [[nodiscard]] gpu::KernelHandle do_kernel(std::string_view module, std::string_view function) override;
  void do_launch(gpu::KernelHandle kernel, const gpu::LaunchShape& shape, gpu::StreamRef stream,
                 std::span<const std::byte> args) override;

  [[nodiscard]] gpu::StreamRef do_default_stream() const override { return default_stream_; }
  [[nodiscard]] gpu::StreamRef do_create_stream() override;
  void do_destroy_stream(gpu::StreamRef stream) override;
  void do_synchronize(gpu::StreamRef stream) override;

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

  // Hands the one command that `append(Batch&)` adds to the stream, or to the capture it takes part in.
  template <class Append>
  void submit(gpu::StreamRef stream, Append&& append);
  [[nodiscard]] std::shared_ptr<EventRecord> record_of(gpu::EventRef event) const;

  const std::vector<CpuKernel> kernels_;  // by module and function; a handle is an index plus one
  HostMemory memory_;
  CaptureBook captures_;
  gpu::HandleTable<gpu::StreamRef, CpuStream> streams_{"stream"};
  gpu::HandleTable<gpu::EventRef, CpuEvent> events_{"event"};
  gpu::HandleTable<gpu::GraphRef, CpuGraph> graphs_{"graph"};
  Scheduler scheduler_;
  ThreadPool pool_;  // last: its threads end before anything they use
  gpu::StreamRef default_stream_;
};

}  // namespace metrale::backends::cpu
