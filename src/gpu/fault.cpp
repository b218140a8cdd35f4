// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <mutex>

#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/gpu/fault.h>
#include <metrale/gpu/op_cache.h>

namespace metrale::gpu {
namespace {

constexpr int kInjected = 1;

// Every call goes to the same call of the inner backend; the faults stand before or after it.
class Fault final : public FaultBackend {
 public:
  explicit Fault(GpuBackend& inner) : inner_(inner) {}
  ~Fault() override {
    try {
      op_cache().release(*this);
    } catch (const std::exception& error) {
      log().error("closing the fault backend: {}", error.what());
    }
  }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;

  void fail_nth(FaultPoint point, std::uint64_t nth) override {
    const std::scoped_lock lock(mutex_);
    state(point).countdown = nth;
  }
  [[nodiscard]] std::uint64_t calls(FaultPoint point) const override {
    const std::scoped_lock lock(mutex_);
    return states_[static_cast<std::size_t>(point)].calls;
  }

 private:
  struct State {
    std::uint64_t calls = 0;
    std::uint64_t countdown = 0;
  };
  State& state(FaultPoint point) { return states_[static_cast<std::size_t>(point)]; }

  // Counts a call; true where it is the one to fail.
  [[nodiscard]] bool is_due(FaultPoint point) {
    const std::scoped_lock lock(mutex_);
    State& counted = state(point);
    ++counted.calls;
    return counted.countdown != 0 && --counted.countdown == 0;
  }
  void fail_if_due(FaultPoint point, const char* call) {
    if (is_due(point)) throw DeviceError(call, kInjected, "injected fault");
  }
  void fail_memory_if_due(FaultPoint point, const char* tier, std::size_t bytes) {
    if (is_due(point)) throw OutOfMemory(tier, bytes, inner_.free_memory_bytes(), "injected fault");
  }

  [[nodiscard]] std::string_view do_name() const override { return inner_.name(); }
  [[nodiscard]] Capabilities do_capabilities() const override { return inner_.capabilities(); }

  [[nodiscard]] DevicePtr do_alloc(std::size_t bytes, CallSite site) override {
    fail_memory_if_due(FaultPoint::kAlloc, "device", bytes);
    return inner_.alloc(bytes, site);
  }
  void do_free(DevicePtr ptr) override {
    inner_.free(ptr);
    fail_if_due(FaultPoint::kFree, "free");
  }
  [[nodiscard]] DevicePtr do_alloc_arena(std::size_t bytes) override {
    fail_memory_if_due(FaultPoint::kAlloc, "device", bytes);
    return inner_.alloc_arena(bytes);
  }
  void do_free_arena(DevicePtr ptr) override {
    inner_.free_arena(ptr);
    fail_if_due(FaultPoint::kFree, "free_arena");
  }
  [[nodiscard]] std::span<std::byte> do_alloc_pinned(std::size_t bytes) override {
    fail_memory_if_due(FaultPoint::kAllocPinned, "pinned", bytes);
    return inner_.alloc_pinned(bytes);
  }
  void do_free_pinned(std::span<std::byte> memory) override {
    inner_.free_pinned(memory);
    fail_if_due(FaultPoint::kFree, "free_pinned");
  }
  [[nodiscard]] DevicePtr do_device_address_of_pinned(const std::byte* host) override {
    return inner_.device_address_of_pinned(host);
  }
  [[nodiscard]] std::span<std::byte> do_host_range(DevicePtr ptr, std::size_t bytes) override {
    return inner_.host_range(ptr, bytes);
  }
  [[nodiscard]] DeviceRange do_allocation_of(DevicePtr ptr) const override {
    return inner_.allocation_of(ptr);
  }

  void do_copy_h2d_blocking(DevicePtr dst, std::span<const std::byte> src) override {
    fail_if_due(FaultPoint::kCopy, "copy_h2d_blocking");
    inner_.copy_h2d_blocking(dst, src);
  }
  void do_copy_d2h_blocking(std::span<std::byte> dst, DevicePtr src) override {
    fail_if_due(FaultPoint::kCopy, "copy_d2h_blocking");
    inner_.copy_d2h_blocking(dst, src);
  }
  void do_copy_d2d_blocking(DevicePtr dst, DevicePtr src, std::size_t bytes) override {
    fail_if_due(FaultPoint::kCopy, "copy_d2d_blocking");
    inner_.copy_d2d_blocking(dst, src, bytes);
  }
  void do_memset_blocking(DevicePtr dst, std::uint8_t value, std::size_t bytes) override {
    fail_if_due(FaultPoint::kCopy, "memset_blocking");
    inner_.memset_blocking(dst, value, bytes);
  }
  void do_copy_h2d_async(DevicePtr dst, std::span<const std::byte> src, StreamRef stream) override {
    fail_if_due(FaultPoint::kCopy, "copy_h2d_async");
    inner_.copy_h2d_async(dst, src, stream);
  }
  void do_copy_h2d_async_retained(DevicePtr dst, std::span<const std::byte> src, StreamRef stream) override {
    fail_if_due(FaultPoint::kCopy, "copy_h2d_async_retained");
    inner_.copy_h2d_async_retained(dst, src, stream);
  }
  void do_copy_d2h_async(std::span<std::byte> dst, DevicePtr src, StreamRef stream) override {
    fail_if_due(FaultPoint::kCopy, "copy_d2h_async");
    inner_.copy_d2h_async(dst, src, stream);
  }
  void do_copy_d2d_async(DevicePtr dst, DevicePtr src, std::size_t bytes, StreamRef stream) override {
    fail_if_due(FaultPoint::kCopy, "copy_d2d_async");
    inner_.copy_d2d_async(dst, src, bytes, stream);
  }
  void do_copy_d2d_2d_async(DevicePtr dst, std::size_t dst_pitch_bytes, DevicePtr src,
                            std::size_t src_pitch_bytes, std::size_t row_bytes, std::size_t rows,
                            StreamRef stream) override {
    fail_if_due(FaultPoint::kCopy, "copy_d2d_2d_async");
    inner_.copy_d2d_2d_async(dst, dst_pitch_bytes, src, src_pitch_bytes, row_bytes, rows, stream);
  }
  void do_memset_async(DevicePtr dst, std::uint8_t value, std::size_t bytes, StreamRef stream) override {
    fail_if_due(FaultPoint::kCopy, "memset_async");
    inner_.memset_async(dst, value, bytes, stream);
  }

  [[nodiscard]] std::uint64_t do_total_memory_bytes() const override { return inner_.total_memory_bytes(); }
  [[nodiscard]] std::uint64_t do_free_memory_bytes() const override { return inner_.free_memory_bytes(); }
  [[nodiscard]] std::uint64_t do_device_free_memory_bytes() const override {
    return inner_.device_free_memory_bytes();
  }
  [[nodiscard]] std::uint32_t do_sm_count() const override { return inner_.sm_count(); }
  [[nodiscard]] std::uint64_t do_live_bytes() const override { return inner_.live_bytes(); }
  [[nodiscard]] std::uint64_t do_live_alloc_count() const override { return inner_.live_alloc_count(); }
  [[nodiscard]] std::vector<AllocationSiteReport> do_alloc_report(std::size_t top,
                                                                  std::uint64_t min_bytes) const override {
    return inner_.alloc_report(top, min_bytes);
  }
  std::size_t do_sweep_unreleased() override { return inner_.sweep_unreleased(); }
  [[nodiscard]] std::vector<RedZoneHit> do_scan_red_zones() override { return inner_.scan_red_zones(); }
  void do_poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) override {
    inner_.poison_red_zones(first_id, last_id);
  }

  [[nodiscard]] bool do_has_module(std::string_view module) const override {
    return inner_.has_module(module);
  }
  [[nodiscard]] KernelHandle do_kernel(std::string_view module, std::string_view function) override {
    return inner_.kernel(module, function);
  }
  void do_launch(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                 std::span<const std::byte> args) override {
    fail_if_due(FaultPoint::kLaunch, "launch");
    inner_.launch(kernel, shape, stream, args);
  }
  void do_launch_raw(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                     std::span<const KernelArg> args) override {
    fail_if_due(FaultPoint::kLaunch, "launch_raw");
    inner_.launch_raw(kernel, shape, stream, args);
  }
  void do_load_module(std::string_view module, std::span<const std::byte> image) override {
    inner_.load_module(module, image);
  }
  [[nodiscard]] DeviceRange do_device_symbol(std::string_view module, std::string_view symbol) override {
    return inner_.device_symbol(module, symbol);
  }

  [[nodiscard]] StreamRef do_default_stream() const override { return inner_.default_stream(); }
  [[nodiscard]] StreamRef do_create_stream() override {
    fail_if_due(FaultPoint::kStream, "create_stream");
    return inner_.create_stream();
  }
  void do_destroy_stream(StreamRef stream) override { inner_.destroy_stream(stream); }
  void do_synchronize(StreamRef stream) override {
    inner_.synchronize(stream);
    fail_if_due(FaultPoint::kSynchronize, "synchronize");
  }
  void do_bind_to_thread() override { inner_.bind_to_thread(); }

  void do_begin_capture(StreamRef stream) override {
    fail_if_due(FaultPoint::kStream, "begin_capture");
    inner_.begin_capture(stream);
  }
  [[nodiscard]] GraphRef do_end_capture(StreamRef stream) override { return inner_.end_capture(stream); }
  [[nodiscard]] bool do_stream_is_capturing(StreamRef stream) const override {
    return inner_.stream_is_capturing(stream);
  }
  void do_abort_capture_if_active(StreamRef stream) noexcept override {
    inner_.abort_capture_if_active(stream);
  }
  void do_launch_graph(GraphRef graph, StreamRef stream) override {
    fail_if_due(FaultPoint::kLaunch, "launch_graph");
    inner_.launch_graph(graph, stream);
  }
  void do_destroy_graph(GraphRef graph) override { inner_.destroy_graph(graph); }

  [[nodiscard]] EventRef do_create_event() override {
    fail_if_due(FaultPoint::kStream, "create_event");
    return inner_.create_event();
  }
  void do_destroy_event(EventRef event) override { inner_.destroy_event(event); }
  void do_record_event(EventRef event, StreamRef stream) override { inner_.record_event(event, stream); }
  void do_stream_wait_event(StreamRef stream, EventRef event) override {
    inner_.stream_wait_event(stream, event);
  }
  void do_event_synchronize(EventRef event) override {
    inner_.event_synchronize(event);
    fail_if_due(FaultPoint::kSynchronize, "event_synchronize");
  }
  [[nodiscard]] bool do_event_query(EventRef event) override { return inner_.event_query(event); }

  GpuBackend& inner_;
  mutable std::mutex mutex_;
  std::array<State, kFaultPoints> states_;
};

}  // namespace

std::unique_ptr<FaultBackend> make_fault_backend(GpuBackend& inner) {
  return std::make_unique<Fault>(inner);
}

}  // namespace metrale::gpu
