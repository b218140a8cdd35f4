// SPDX-License-Identifier: Apache-2.0
// The public half of GpuBackend: what holds for every implementation is checked and counted here.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/gpu/backend.h>
#include <metrale/gpu/op_cache.h>

namespace metrale::gpu {
namespace {

constexpr std::string_view kGraphs = "graphs";
constexpr std::string_view kPinnedAddress = "device addresses of pinned memory";
constexpr std::string_view kHostRange = "host memory behind device addresses";
constexpr std::string_view kRawLaunch = "raw launches";
constexpr std::string_view kForeignModules = "modules from outside";
constexpr std::string_view kRedZones = "red zones (ask for them when the backend is made)";

void require(bool offered, const GpuBackend& gpu, std::string_view feature) {
  if (!offered) throw Unsupported(fmt::format("backend '{}'", gpu.name()), feature);
}

[[noreturn]] void refuse(const GpuBackend& gpu, std::string_view feature) {
  throw Unsupported(fmt::format("backend '{}'", gpu.name()), feature);
}

void forbid_in_capture(const GpuBackend& gpu, StreamRef stream, std::string_view call) {
  if (gpu.stream_is_capturing(stream)) {
    throw InvalidArgument(
        fmt::format("{} on a stream that is capturing: end the capture first (it goes on)", call));
  }
}

void expect_disjoint(DevicePtr a, DevicePtr b, std::size_t bytes) {
  const std::uint64_t apart = std::max(a, b).address() - std::min(a, b).address();
  expects(apart >= bytes, "source and destination of a device-to-device copy overlap");
}

void bump(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace

GpuBackend::GpuBackend() : op_cache_(std::make_unique<OpCache>()) {}
GpuBackend::~GpuBackend() = default;

BackendStats GpuBackend::stats() const {
  return {.allocs = counters_.allocs,
          .frees = counters_.frees,
          .launches = counters_.launches,
          .graph_launches = counters_.graph_launches,
          .synchronizes = counters_.synchronizes,
          .h2d_copies = counters_.h2d_copies,
          .h2d_bytes = counters_.h2d_bytes,
          .d2h_copies = counters_.d2h_copies,
          .d2h_bytes = counters_.d2h_bytes};
}

// ---- memory

DevicePtr GpuBackend::alloc(std::size_t bytes, CallSite site) {
  expects(bytes != 0, "alloc of zero bytes");
  const DevicePtr ptr = do_alloc(bytes, site);
  bump(counters_.allocs);
  return ptr;
}

void GpuBackend::free(DevicePtr ptr) {
  if (ptr.is_null()) return;
  do_free(ptr);
  bump(counters_.frees);
}

DevicePtr GpuBackend::alloc_arena(std::size_t bytes) {
  expects(bytes != 0, "alloc_arena of zero bytes");
  return do_alloc_arena(bytes);
}

void GpuBackend::free_arena(DevicePtr ptr) {
  if (!ptr.is_null()) do_free_arena(ptr);
}

std::span<std::byte> GpuBackend::alloc_pinned(std::size_t bytes) {
  expects(bytes != 0, "alloc_pinned of zero bytes");
  return do_alloc_pinned(bytes);
}

void GpuBackend::free_pinned(std::span<std::byte> memory) {
  if (!memory.empty()) do_free_pinned(memory);
}

DevicePtr GpuBackend::device_address_of_pinned(const std::byte* host) {
  require(capabilities().pinned_device_address, *this, kPinnedAddress);
  return do_device_address_of_pinned(host);
}

std::span<std::byte> GpuBackend::host_range(DevicePtr ptr, std::size_t bytes) {
  require(capabilities().host_memory_is_device_memory, *this, kHostRange);
  return do_host_range(ptr, bytes);
}

// ---- copies

void GpuBackend::copy_h2d_blocking(DevicePtr dst, std::span<const std::byte> src) {
  if (src.empty()) return;
  do_copy_h2d_blocking(dst, src);
  bump(counters_.h2d_copies);
  bump(counters_.h2d_bytes, src.size());
  bump(counters_.synchronizes);
}

void GpuBackend::copy_d2h_blocking(std::span<std::byte> dst, DevicePtr src) {
  if (dst.empty()) return;
  do_copy_d2h_blocking(dst, src);
  bump(counters_.d2h_copies);
  bump(counters_.d2h_bytes, dst.size());
  bump(counters_.synchronizes);
}

void GpuBackend::copy_d2d_blocking(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  if (bytes == 0) return;
  expect_disjoint(dst, src, bytes);
  do_copy_d2d_blocking(dst, src, bytes);
  bump(counters_.synchronizes);
}

void GpuBackend::memset_blocking(DevicePtr dst, std::uint8_t value, std::size_t bytes) {
  if (bytes == 0) return;
  do_memset_blocking(dst, value, bytes);
  bump(counters_.synchronizes);
}

void GpuBackend::copy_d2h_on_stream(std::span<std::byte> dst, DevicePtr src, StreamRef stream) {
  forbid_in_capture(*this, stream, "copy_d2h_on_stream");
  if (dst.empty()) return;
  do_copy_d2h_async(dst, src, stream);
  bump(counters_.d2h_copies);
  bump(counters_.d2h_bytes, dst.size());
  do_synchronize(stream);
  bump(counters_.synchronizes);
}

void GpuBackend::copy_h2d_async(DevicePtr dst, std::span<const std::byte> src, StreamRef stream) {
  forbid_in_capture(*this, stream, "copy_h2d_async (use copy_h2d_async_retained)");
  if (src.empty()) return;
  do_copy_h2d_async(dst, src, stream);
  bump(counters_.h2d_copies);
  bump(counters_.h2d_bytes, src.size());
}

void GpuBackend::copy_h2d_async_retained(DevicePtr dst, std::span<const std::byte> src, StreamRef stream) {
  if (src.empty()) return;
  do_copy_h2d_async_retained(dst, src, stream);
  bump(counters_.h2d_copies);
  bump(counters_.h2d_bytes, src.size());
}

void GpuBackend::copy_d2h_async(std::span<std::byte> dst, DevicePtr src, StreamRef stream) {
  if (dst.empty()) return;
  do_copy_d2h_async(dst, src, stream);
  bump(counters_.d2h_copies);
  bump(counters_.d2h_bytes, dst.size());
}

void GpuBackend::copy_d2d_async(DevicePtr dst, DevicePtr src, std::size_t bytes, StreamRef stream) {
  if (bytes == 0) return;
  expect_disjoint(dst, src, bytes);
  do_copy_d2d_async(dst, src, bytes, stream);
}

void GpuBackend::copy_d2d_2d_async(DevicePtr dst, std::size_t dst_pitch_bytes, DevicePtr src,
                                   std::size_t src_pitch_bytes, std::size_t row_bytes, std::size_t rows,
                                   StreamRef stream) {
  if (dst_pitch_bytes < row_bytes || src_pitch_bytes < row_bytes) {
    throw InvalidArgument(
        fmt::format("2D copy of rows of {} bytes at pitches of {} (destination) and {} (source)", row_bytes,
                    dst_pitch_bytes, src_pitch_bytes));
  }
  if (row_bytes == 0 || rows == 0) return;
  do_copy_d2d_2d_async(dst, dst_pitch_bytes, src, src_pitch_bytes, row_bytes, rows, stream);
}

void GpuBackend::memset_async(DevicePtr dst, std::uint8_t value, std::size_t bytes, StreamRef stream) {
  if (bytes != 0) do_memset_async(dst, value, bytes, stream);
}

// ---- ledger

std::size_t GpuBackend::sweep_unreleased() {
  op_cache_->release(*this);
  return do_sweep_unreleased();
}

std::vector<RedZoneHit> GpuBackend::scan_red_zones() {
  require(capabilities().red_zones, *this, kRedZones);
  return do_scan_red_zones();
}

void GpuBackend::poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) {
  require(capabilities().red_zones, *this, kRedZones);
  do_poison_red_zones(first_id, last_id);
}

// ---- launch

KernelHandle GpuBackend::kernel(std::string_view module, std::string_view function) {
  return do_kernel(module, function);
}

void GpuBackend::launch(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                        std::span<const std::byte> args) {
  do_launch(kernel, shape, stream, args);
  bump(counters_.launches);
}

void GpuBackend::launch_raw(KernelHandle kernel, const LaunchShape& shape, StreamRef stream,
                            std::span<const KernelArg> args) {
  require(capabilities().raw_launch, *this, kRawLaunch);
  do_launch_raw(kernel, shape, stream, args);
  bump(counters_.launches);
}

void GpuBackend::load_module(std::string_view module, std::span<const std::byte> image) {
  require(capabilities().foreign_modules, *this, kForeignModules);
  expects(!image.empty(), "load_module: the image has no bytes");
  do_load_module(module, image);
}

void GpuBackend::load_module_file(std::string_view module, const std::string& path) {
  require(capabilities().foreign_modules, *this, kForeignModules);
  const MappedFile file(open_regular_file(path), path);
  try {
    load_module(module, file.bytes());
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("'{}': {}", path, error.what()));
  }
}

DeviceRange GpuBackend::device_symbol(std::string_view module, std::string_view symbol) {
  require(capabilities().foreign_modules, *this, kForeignModules);
  return do_device_symbol(module, symbol);
}

// ---- streams

void GpuBackend::destroy_stream(StreamRef stream) {
  expects(stream != default_stream(), "the default stream lives as long as its backend");
  forbid_in_capture(*this, stream, "destroy_stream");
  do_destroy_stream(stream);
}

void GpuBackend::synchronize(StreamRef stream) {
  forbid_in_capture(*this, stream, "synchronize");
  do_synchronize(stream);
  bump(counters_.synchronizes);
}

// ---- graphs

void GpuBackend::begin_capture(StreamRef stream) {
  require(capabilities().graphs, *this, kGraphs);
  forbid_in_capture(*this, stream, "begin_capture");
  do_begin_capture(stream);
}

GraphRef GpuBackend::end_capture(StreamRef stream) {
  require(capabilities().graphs, *this, kGraphs);
  return do_end_capture(stream);
}

void GpuBackend::launch_graph(GraphRef graph, StreamRef stream) {
  require(capabilities().graphs, *this, kGraphs);
  forbid_in_capture(*this, stream, "launch_graph");
  do_launch_graph(graph, stream);
  bump(counters_.graph_launches);
}

void GpuBackend::destroy_graph(GraphRef graph) {
  require(capabilities().graphs, *this, kGraphs);
  do_destroy_graph(graph);
}

// ---- events

void GpuBackend::event_synchronize(EventRef event) {
  do_event_synchronize(event);
  bump(counters_.synchronizes);
}

// ---- what a backend need not have; the public calls have refused already where its capability is false

DevicePtr GpuBackend::do_device_address_of_pinned(const std::byte*) {
  refuse(*this, kPinnedAddress);
}
std::span<std::byte> GpuBackend::do_host_range(DevicePtr, std::size_t) {
  refuse(*this, kHostRange);
}
std::vector<RedZoneHit> GpuBackend::do_scan_red_zones() {
  refuse(*this, kRedZones);
}
void GpuBackend::do_poison_red_zones(std::uint64_t, std::uint64_t) {
  refuse(*this, kRedZones);
}
void GpuBackend::do_launch_raw(KernelHandle, const LaunchShape&, StreamRef, std::span<const KernelArg>) {
  refuse(*this, kRawLaunch);
}
void GpuBackend::do_load_module(std::string_view, std::span<const std::byte>) {
  refuse(*this, kForeignModules);
}
DeviceRange GpuBackend::do_device_symbol(std::string_view, std::string_view) {
  refuse(*this, kForeignModules);
}
void GpuBackend::do_begin_capture(StreamRef) {
  refuse(*this, kGraphs);
}
GraphRef GpuBackend::do_end_capture(StreamRef) {
  refuse(*this, kGraphs);
}
void GpuBackend::do_launch_graph(GraphRef, StreamRef) {
  refuse(*this, kGraphs);
}
void GpuBackend::do_destroy_graph(GraphRef) {
  refuse(*this, kGraphs);
}

}  // namespace metrale::gpu
