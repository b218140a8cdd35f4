// SPDX-License-Identifier: Apache-2.0
// Mock: the implementation of MockBackend. One lock; work is done where it is enqueued.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <metrale/gpu/handle_table.h>
#include <metrale/gpu/mock.h>

#include "gpu/mock/mock_capture.h"
#include "gpu/mock/mock_memory.h"

namespace metrale::gpu {

struct MockStream {};

class Mock final : public MockBackend {
 public:
  explicit Mock(const MockOptions& options);
  ~Mock() override;
  Mock(const Mock&) = delete;
  Mock& operator=(const Mock&) = delete;

  [[nodiscard]] std::vector<MockLaunch> launches() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> lookups() const override;
  void deny_kernel(std::string_view module, std::string_view function) override;
  void mark_module_absent(std::string_view module) override;
  void fail_nth(std::uint64_t nth) override;
  [[nodiscard]] std::span<std::byte> host_bytes(DevicePtr ptr) override;

 private:
  [[nodiscard]] std::string_view do_name() const override { return "mock"; }
  [[nodiscard]] Capabilities do_capabilities() const override;

  [[nodiscard]] DevicePtr do_alloc(std::size_t bytes, CallSite site) override;
  void do_free(DevicePtr ptr) override;
  [[nodiscard]] DevicePtr do_alloc_arena(std::size_t bytes) override;
  void do_free_arena(DevicePtr ptr) override;
  [[nodiscard]] std::span<std::byte> do_alloc_pinned(std::size_t bytes) override;
  void do_free_pinned(std::span<std::byte> memory) override;
  [[nodiscard]] DevicePtr do_device_address_of_pinned(const std::byte* host) override;
  [[nodiscard]] DeviceRange do_allocation_of(DevicePtr ptr) const override;
  void do_copy_h2d_blocking(DevicePtr dst, std::span<const std::byte> src) override;
  void do_copy_d2h_blocking(std::span<std::byte> dst, DevicePtr src) override;
  void do_copy_d2d_blocking(DevicePtr dst, DevicePtr src, std::size_t bytes) override;
  void do_memset_blocking(DevicePtr dst, std::uint8_t value, std::size_t bytes) override;
  void do_copy_h2d_async(DevicePtr dst, std::span<const std::byte> src, StreamRef stream) override;
  void do_copy_h2d_async_retained(DevicePtr dst, std::span<const std::byte> src, StreamRef stream) override;
  void do_copy_d2h_async(std::span<std::byte> dst, DevicePtr src, StreamRef stream) override;
  void do_copy_d2d_async(DevicePtr dst, DevicePtr src, std::size_t bytes, StreamRef stream) override;
  void do_copy_d2d_2d_async(DevicePtr dst, std::size_t dst_pitch_bytes, DevicePtr src,
                            std::size_t src_pitch_bytes, std::size_t row_bytes, std::size_t rows,
                            StreamRef stream) override;
  void do_memset_async(DevicePtr dst, std::uint8_t value, std::size_t bytes, StreamRef stream) override;
  [[nodiscard]] std::uint64_t do_total_memory_bytes() const override { return options_.total_memory_bytes; }
  [[nodiscard]] std::uint64_t do_free_memory_bytes() const override;
  [[nodiscard]] std::uint32_t do_sm_count() const override { return options_.sm_count; }

  [[nodiscard]] std::uint64_t do_live_bytes() const override { return memory_.ledger().live_bytes(); }
  [[nodiscard]] std::uint64_t do_live_alloc_count() const override { return memory_.ledger().live_count(); }
  [[nodiscard]] std::vector<AllocationSiteReport> do_alloc_report(std::size_t top,
                                                                  std::uint64_t min_bytes) const override;
  std::size_t do_sweep_unreleased() override;
  [[nodiscard]] std::vector<RedZoneHit> do_scan_red_zones() override;
  void do_poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) override;

  [[nodiscard]] bool do_has_module(std::string_view module) const override;
  [[nodiscard]] KernelHandle do_kernel(std::string_view module, std::string_view function) override;
  void do_launch(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                 std::span<const std::byte> args) override;
  void do_launch_raw(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                     std::span<const KernelArg> args) override;

  [[nodiscard]] StreamRef do_default_stream() const override { return default_stream_; }
  [[nodiscard]] StreamRef do_create_stream() override;
  void do_destroy_stream(StreamRef stream) override;
  void do_synchronize(StreamRef stream) override;

  void do_begin_capture(StreamRef stream) override;
  [[nodiscard]] GraphRef do_end_capture(StreamRef stream) override;
  [[nodiscard]] bool do_stream_is_capturing(StreamRef stream) const override;
  void do_abort_capture_if_active(StreamRef stream) noexcept override;
  void do_launch_graph(GraphRef graph, StreamRef stream) override;
  void do_destroy_graph(GraphRef graph) override;

  [[nodiscard]] EventRef do_create_event() override;
  void do_destroy_event(EventRef event) override;
  void do_record_event(EventRef event, StreamRef stream) override;
  void do_stream_wait_event(StreamRef stream, EventRef event) override;
  void do_event_synchronize(EventRef event) override;
  [[nodiscard]] bool do_event_query(EventRef event) override;

  // The helpers below want the lock.
  void fail_if_due(const char* call);
  void fail_memory_if_due(const char* tier, std::size_t bytes);
  [[nodiscard]] bool is_due();
  // Does the node's work now, or records it where `stream` is capturing.
  void perform(StreamRef stream, MockNode node);
  // `words` are the arguments as 64-bit words, any of which may be an address.
  void perform_launch(StreamRef stream, MockLaunch launch, std::vector<std::uint64_t> words);
  [[nodiscard]] MockLaunch name_launch(KernelHandle kernel, const LaunchShape& shape) const;
  void expect_on_the_host(EventRef event) const;

  const MockOptions options_;
  mutable std::mutex mutex_;
  std::uint64_t fail_countdown_ = 0;
  MockMemory memory_;
  MockCaptures captures_;
  HandleTable<StreamRef, MockStream> streams_{"stream"};
  HandleTable<EventRef, MockEvent> events_{"event"};
  HandleTable<GraphRef, std::vector<MockNode>> graphs_{"graph"};
  StreamRef default_stream_;
  std::vector<std::pair<std::string, std::string>> kernels_;  // a handle is an index plus one
  std::vector<std::pair<std::string, std::string>> lookups_;
  std::set<std::pair<std::string, std::string>> denied_;
  std::set<std::string, std::less<>> absent_modules_;
  std::vector<MockLaunch> launches_;
};

}  // namespace metrale::gpu
