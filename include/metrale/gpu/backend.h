// SPDX-License-Identifier: Apache-2.0
// GpuBackend: everything above this line talks to a device through these five concerns: memory, launch,
// streams, graphs, events. Public calls check and count; implementations fill in the private do_* calls.
//
// Threads: all calls are thread-safe; work enqueued on one stream from several threads runs in some order.
// Blocking: a call that neither names a stream nor says "blocking" never waits for device work.
// Failures: a kernel or copy that fails on its stream makes that stream (and every stream or event that
// waited on it) failed for good: later work there is skipped, and synchronize, event_synchronize, event_query
// and copy_d2h_on_stream throw the first error, a DeviceError. destroy_stream is the only cure. Without
// capabilities().isolated_failures every stream of the backend throws it, work that was enqueued may still
// run, and a new backend is the cure; after DeviceError::context_lost() every call throws.
// Handles and addresses that are dead or foreign throw InvalidArgument. A copy or memset of zero bytes does
// nothing; one that leaves its allocation throws InvalidArgument where the backend can see it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <metrale/base/device_ptr.h>
#include <metrale/gpu/kernel_args.h>
#include <metrale/gpu/types.h>

namespace metrale::gpu {

class OpCache;

class GpuBackend {
 public:
  GpuBackend();
  virtual ~GpuBackend();
  GpuBackend(const GpuBackend&) = delete;
  GpuBackend& operator=(const GpuBackend&) = delete;

  // "cpu", "mock", …; stable for the backend's life.
  [[nodiscard]] std::string_view name() const { return do_name(); }
  [[nodiscard]] Capabilities capabilities() const { return do_capabilities(); }
  [[nodiscard]] BackendStats stats() const;

  // ---- memory
  // Blocking. Contents undefined (poisoned in checked builds). Aligned to 256 bytes. Throws OutOfMemory
  // (naming what is free), InvalidArgument for zero bytes. The call site goes on the ledger.
  [[nodiscard]] DevicePtr alloc(std::size_t bytes, CallSite site = CallSite::here());
  // Blocking; null is a no-op. Throws InvalidArgument where `ptr` is not the base of a live allocation. The
  // caller has made sure that no enqueued work still uses it.
  void free(DevicePtr ptr);
  // As alloc and free, but off the ledger and without red zones: for what lives as long as the
  // process.
  [[nodiscard]] DevicePtr alloc_arena(std::size_t bytes);
  void free_arena(DevicePtr ptr);
  // Page-locked host memory, zeroed, aligned to 4096 bytes. Throws OutOfMemory.
  [[nodiscard]] std::span<std::byte> alloc_pinned(std::size_t bytes);
  void free_pinned(std::span<std::byte> memory);
  // The device address of a byte inside pinned memory. Needs capabilities().pinned_device_address.
  [[nodiscard]] DevicePtr device_address_of_pinned(const std::byte* host);
  // The host memory behind a range of one live allocation, to be filled without a copy; ordered after nothing
  // but what the caller synchronised. Needs capabilities().host_memory_is_device_memory.
  [[nodiscard]] std::span<std::byte> host_range(DevicePtr ptr, std::size_t bytes);

  // The live allocation of any kind that `ptr` points into; of no bytes where there is none.
  [[nodiscard]] DeviceRange allocation_of(DevicePtr ptr) const { return do_allocation_of(ptr); }

  // Blocking copies, ordered after nothing but what the caller synchronised. Source and destination of a
  // device-to-device copy do not overlap (InvalidArgument).
  void copy_h2d_blocking(DevicePtr dst, std::span<const std::byte> src);
  void copy_d2h_blocking(std::span<std::byte> dst, DevicePtr src);
  void copy_d2d_blocking(DevicePtr dst, DevicePtr src, std::size_t bytes);
  void memset_blocking(DevicePtr dst, std::uint8_t value, std::size_t bytes);
  // Enqueues on `stream` and waits for that stream.
  void copy_d2h_on_stream(std::span<std::byte> dst, DevicePtr src, StreamRef stream);
  // Enqueued. `src` may be changed or freed as soon as the call returns. Not capturable.
  void copy_h2d_async(DevicePtr dst, std::span<const std::byte> src, StreamRef stream);
  // Enqueued. The caller keeps `src` alive and unchanged until the stream has passed the copy; in a capture,
  // until the graph is destroyed (each replay reads it again).
  void copy_h2d_async_retained(DevicePtr dst, std::span<const std::byte> src, StreamRef stream);
  // Enqueued. The caller keeps `dst` alive and unread until the stream has passed the copy.
  void copy_d2h_async(std::span<std::byte> dst, DevicePtr src, StreamRef stream);
  void copy_d2d_async(DevicePtr dst, DevicePtr src, std::size_t bytes, StreamRef stream);
  // `rows` rows of `row_bytes` each, at pitches of at least row_bytes. Throws InvalidArgument otherwise.
  void copy_d2d_2d_async(DevicePtr dst, std::size_t dst_pitch_bytes, DevicePtr src,
                         std::size_t src_pitch_bytes, std::size_t row_bytes, std::size_t rows,
                         StreamRef stream);
  void memset_async(DevicePtr dst, std::uint8_t value, std::size_t bytes, StreamRef stream);

  [[nodiscard]] std::uint64_t total_memory_bytes() const { return do_total_memory_bytes(); }
  // What alloc can still give; on a device that shares the host's memory, what the host can spare.
  [[nodiscard]] std::uint64_t free_memory_bytes() const { return do_free_memory_bytes(); }
  // The driver's own figure, never host memory.
  [[nodiscard]] std::uint64_t device_free_memory_bytes() const { return do_device_free_memory_bytes(); }
  // Streaming multiprocessors; on the CPU, worker threads.
  [[nodiscard]] std::uint32_t sm_count() const { return do_sm_count(); }

  // ---- the ledger: how leaks and stray writes are found
  [[nodiscard]] std::uint64_t live_bytes() const { return do_live_bytes(); }
  [[nodiscard]] std::uint64_t live_alloc_count() const { return do_live_alloc_count(); }
  // Live memory by call site, at most `top` entries of at least `min_bytes`, largest first.
  [[nodiscard]] std::vector<AllocationSiteReport> alloc_report(std::size_t top,
                                                               std::uint64_t min_bytes) const {
    return do_alloc_report(top, min_bytes);
  }
  // Blocking. Releases op_cache(), then frees everything still on the ledger, logging the largest call sites;
  // returns how many there were. No work is enqueued.
  std::size_t sweep_unreleased();
  // Blocking. Red zones that somebody wrote into. Needs capabilities().red_zones.
  [[nodiscard]] std::vector<RedZoneHit> scan_red_zones();
  // Blocking. Refills the red zones of allocations whose id lies in [first_id, last_id).
  void poison_red_zones(std::uint64_t first_id, std::uint64_t last_id);

  // ---- launch
  [[nodiscard]] bool has_module(std::string_view module) const { return do_has_module(module); }
  // Blocking at the first look-up of a kernel: the device may have to load it, behind what runs. Throws
  // InvalidArgument naming module::function where there is none. Look up once: op_cache() or BoundKernel.
  [[nodiscard]] KernelHandle kernel(std::string_view module, std::string_view function);
  // Enqueued: `args` is the kernel's one argument struct and is copied. Throws InvalidArgument where its size
  // is not the kernel's. Prefer the typed launch() of kernel.h.
  void launch(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
              std::span<const std::byte> args);
  // Enqueued: a foreign kernel with a list of arguments. Throws InvalidArgument, naming kernel and argument,
  // where their number or a size is not the kernel's, as far as the device's driver tells (CUDA's from 12.4
  // on). Where it does not, that is the caller's duty: the driver reads as many bytes as the kernel takes.
  // Needs capabilities().raw_launch.
  void launch_raw(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                  std::span<const KernelArg> args);
  // Adds a module from outside: PTX text, a cubin or a fat binary. Blocking; `image` is not kept. Throws
  // InvalidArgument for a name that is taken and for an image that the device refuses (with what its compiler
  // says); load_module_file also IoError. Needs capabilities().foreign_modules. Its kernels are launched by
  // launch_raw.
  void load_module(std::string_view module, std::span<const std::byte> image);
  void load_module_file(std::string_view module, const std::string& path);
  // A variable of a module; copies may name it while the backend lives. Throws InvalidArgument.
  [[nodiscard]] DeviceRange device_symbol(std::string_view module, std::string_view symbol);
  // One per backend; lives as long as it.
  [[nodiscard]] OpCache& op_cache() { return *op_cache_; }

  // ---- streams
  // Never null; lives as long as the backend.
  [[nodiscard]] StreamRef default_stream() const { return do_default_stream(); }
  [[nodiscard]] StreamRef create_stream() { return do_create_stream(); }
  // Blocking: waits for what is enqueued; a failure there is dropped. Throws InvalidArgument for the default
  // stream, a dead handle, and a stream that is capturing.
  void destroy_stream(StreamRef stream);
  // Blocking. Throws the stream's first error.
  void synchronize(StreamRef stream);
  // Makes the backend's context current on the calling thread.
  void bind_to_thread() { do_bind_to_thread(); }

  // ---- graphs (capabilities().graphs)
  // From here until end_capture, work on `stream` is recorded and not run; other streams join by waiting on
  // an event recorded in the capture, and must be joined back before it ends. A default stream that backends
  // share cannot capture (InvalidArgument). Blocking calls on a capturing
  // stream throw InvalidArgument and leave the capture as it was.
  void begin_capture(StreamRef stream);
  // Throws InvalidArgument where `stream` did not begin a capture or joined streams were not joined back; the
  // capture is then discarded.
  [[nodiscard]] GraphRef end_capture(StreamRef stream);
  [[nodiscard]] bool stream_is_capturing(StreamRef stream) const { return do_stream_is_capturing(stream); }
  // Discards a capture on error paths; no-op when there is none.
  void abort_capture_if_active(StreamRef stream) noexcept { do_abort_capture_if_active(stream); }
  // Enqueued. Kernels read their device data anew at each replay. Throws InvalidArgument where an allocation
  // that the graph's copies, memsets or kernel arguments point into was freed, and where `stream` is
  // capturing.
  void launch_graph(GraphRef graph, StreamRef stream);
  // Blocking where a replay is still running.
  void destroy_graph(GraphRef graph);

  // ---- events
  [[nodiscard]] EventRef create_event() { return do_create_event(); }
  void destroy_event(EventRef event) { do_destroy_event(event); }
  // Enqueued: the event is complete once the stream has passed this point. Recording again moves it; waits
  // that were enqueued before keep the old point. In a capture it marks a point of the capture: only streams
  // of that capture, and streams that thereby join it, can wait for it.
  void record_event(EventRef event, StreamRef stream) { do_record_event(event, stream); }
  // Enqueued: later work on `stream` waits for the latest record (none yet: no wait).
  void stream_wait_event(StreamRef stream, EventRef event) { do_stream_wait_event(stream, event); }
  // Blocking. Throws the error of the stream that recorded it.
  void event_synchronize(EventRef event);
  // True once complete (or never recorded). Throws the error of the stream that recorded it.
  [[nodiscard]] bool event_query(EventRef event) { return do_event_query(event); }

 private:
  [[nodiscard]] virtual std::string_view do_name() const = 0;
  [[nodiscard]] virtual Capabilities do_capabilities() const = 0;

  [[nodiscard]] virtual DevicePtr do_alloc(std::size_t bytes, CallSite site) = 0;
  virtual void do_free(DevicePtr ptr) = 0;
  [[nodiscard]] virtual DevicePtr do_alloc_arena(std::size_t bytes) = 0;
  virtual void do_free_arena(DevicePtr ptr) = 0;
  [[nodiscard]] virtual std::span<std::byte> do_alloc_pinned(std::size_t bytes) = 0;
  virtual void do_free_pinned(std::span<std::byte> memory) = 0;
  [[nodiscard]] virtual DevicePtr do_device_address_of_pinned(const std::byte* host);
  [[nodiscard]] virtual std::span<std::byte> do_host_range(DevicePtr ptr, std::size_t bytes);
  [[nodiscard]] virtual DeviceRange do_allocation_of(DevicePtr ptr) const = 0;
  virtual void do_copy_h2d_blocking(DevicePtr dst, std::span<const std::byte> src) = 0;
  virtual void do_copy_d2h_blocking(std::span<std::byte> dst, DevicePtr src) = 0;
  virtual void do_copy_d2d_blocking(DevicePtr dst, DevicePtr src, std::size_t bytes) = 0;
  virtual void do_memset_blocking(DevicePtr dst, std::uint8_t value, std::size_t bytes) = 0;
  virtual void do_copy_h2d_async(DevicePtr dst, std::span<const std::byte> src, StreamRef stream) = 0;
  virtual void do_copy_h2d_async_retained(DevicePtr dst, std::span<const std::byte> src,
                                          StreamRef stream) = 0;
  virtual void do_copy_d2h_async(std::span<std::byte> dst, DevicePtr src, StreamRef stream) = 0;
  virtual void do_copy_d2d_async(DevicePtr dst, DevicePtr src, std::size_t bytes, StreamRef stream) = 0;
  virtual void do_copy_d2d_2d_async(DevicePtr dst, std::size_t dst_pitch_bytes, DevicePtr src,
                                    std::size_t src_pitch_bytes, std::size_t row_bytes, std::size_t rows,
                                    StreamRef stream) = 0;
  virtual void do_memset_async(DevicePtr dst, std::uint8_t value, std::size_t bytes, StreamRef stream) = 0;
  [[nodiscard]] virtual std::uint64_t do_total_memory_bytes() const = 0;
  [[nodiscard]] virtual std::uint64_t do_free_memory_bytes() const = 0;
  [[nodiscard]] virtual std::uint64_t do_device_free_memory_bytes() const { return do_free_memory_bytes(); }
  [[nodiscard]] virtual std::uint32_t do_sm_count() const = 0;

  [[nodiscard]] virtual std::uint64_t do_live_bytes() const = 0;
  [[nodiscard]] virtual std::uint64_t do_live_alloc_count() const = 0;
  [[nodiscard]] virtual std::vector<AllocationSiteReport> do_alloc_report(std::size_t top,
                                                                          std::uint64_t min_bytes) const = 0;
  virtual std::size_t do_sweep_unreleased() = 0;
  [[nodiscard]] virtual std::vector<RedZoneHit> do_scan_red_zones();
  virtual void do_poison_red_zones(std::uint64_t first_id, std::uint64_t last_id);

  [[nodiscard]] virtual bool do_has_module(std::string_view module) const = 0;
  [[nodiscard]] virtual KernelHandle do_kernel(std::string_view module, std::string_view function) = 0;
  virtual void do_launch(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                         std::span<const std::byte> args) = 0;
  virtual void do_launch_raw(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                             std::span<const KernelArg> args);
  virtual void do_load_module(std::string_view module, std::span<const std::byte> image);
  [[nodiscard]] virtual DeviceRange do_device_symbol(std::string_view module, std::string_view symbol);

  [[nodiscard]] virtual StreamRef do_default_stream() const = 0;
  [[nodiscard]] virtual StreamRef do_create_stream() = 0;
  virtual void do_destroy_stream(StreamRef stream) = 0;
  virtual void do_synchronize(StreamRef stream) = 0;
  virtual void do_bind_to_thread() {}

  virtual void do_begin_capture(StreamRef stream);
  [[nodiscard]] virtual GraphRef do_end_capture(StreamRef stream);
  [[nodiscard]] virtual bool do_stream_is_capturing(StreamRef) const { return false; }
  virtual void do_abort_capture_if_active(StreamRef) noexcept {}
  virtual void do_launch_graph(GraphRef graph, StreamRef stream);
  virtual void do_destroy_graph(GraphRef graph);

  [[nodiscard]] virtual EventRef do_create_event() = 0;
  virtual void do_destroy_event(EventRef event) = 0;
  virtual void do_record_event(EventRef event, StreamRef stream) = 0;
  virtual void do_stream_wait_event(StreamRef stream, EventRef event) = 0;
  virtual void do_event_synchronize(EventRef event) = 0;
  [[nodiscard]] virtual bool do_event_query(EventRef event) = 0;

  struct Counters {
    std::atomic<std::uint64_t> allocs{0}, frees{0}, launches{0}, graph_launches{0}, synchronizes{0},
        h2d_copies{0}, h2d_bytes{0}, d2h_copies{0}, d2h_bytes{0};
  };
  Counters counters_;
  std::unique_ptr<OpCache> op_cache_;
};

}  // namespace metrale::gpu
