// SPDX-License-Identifier: Apache-2.0
// The mock's memory, copies and knobs.
#include "gpu/mock/mock_backend.h"

#include <cstring>

#include <metrale/base/checked.h>
#include <metrale/base/log.h>

namespace metrale::gpu {

Mock::Mock(const MockOptions& options)
    : options_(options), memory_(options), captures_(memory_), default_stream_(Mock::do_create_stream()) {}

Mock::~Mock() {
  try {
    sweep_unreleased();
  } catch (const std::exception& error) {
    log().error("closing the mock backend: {}", error.what());
  }
}

Capabilities Mock::do_capabilities() const {
  return {.graphs = true,
          .pinned_device_address = true,
          .raw_launch = true,
          .foreign_modules = false,
          .red_zones = options_.red_zone_bytes != 0,
          .host_memory_is_device_memory = false,
          .runs_kernels = false,
          .isolated_failures = true};
}

// ---- knobs

std::vector<MockLaunch> Mock::launches() const {
  const std::scoped_lock lock(mutex_);
  return launches_;
}

std::vector<std::pair<std::string, std::string>> Mock::lookups() const {
  const std::scoped_lock lock(mutex_);
  return lookups_;
}

void Mock::deny_kernel(std::string_view module, std::string_view function) {
  const std::scoped_lock lock(mutex_);
  denied_.emplace(module, function);
}

void Mock::mark_module_absent(std::string_view module) {
  const std::scoped_lock lock(mutex_);
  absent_modules_.emplace(module);
}

void Mock::fail_nth(std::uint64_t nth) {
  const std::scoped_lock lock(mutex_);
  fail_countdown_ = nth;
}

std::span<std::byte> Mock::host_bytes(DevicePtr ptr) {
  const std::scoped_lock lock(mutex_);
  return memory_.to_the_end(ptr);
}

bool Mock::is_due() {
  return fail_countdown_ != 0 && --fail_countdown_ == 0;
}

void Mock::fail_if_due(const char* call) {
  if (is_due()) throw DeviceError(call, 1, "injected by the mock");
}

void Mock::fail_memory_if_due(const char* tier, std::size_t bytes) {
  if (is_due()) throw OutOfMemory(tier, bytes, memory_.free_bytes(), "injected by the mock");
}

// ---- memory

DevicePtr Mock::do_alloc(std::size_t bytes, CallSite site) {
  const std::scoped_lock lock(mutex_);
  fail_memory_if_due("device", bytes);
  return memory_.alloc(MockMemoryKind::kLedger, bytes, site);
}

void Mock::do_free(DevicePtr ptr) {
  const std::scoped_lock lock(mutex_);
  memory_.free(MockMemoryKind::kLedger, ptr);
}

DevicePtr Mock::do_alloc_arena(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  fail_memory_if_due("device", bytes);
  return memory_.alloc(MockMemoryKind::kArena, bytes, {});
}

void Mock::do_free_arena(DevicePtr ptr) {
  const std::scoped_lock lock(mutex_);
  memory_.free(MockMemoryKind::kArena, ptr);
}

std::span<std::byte> Mock::do_alloc_pinned(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  fail_memory_if_due("pinned", bytes);
  return memory_.pinned_span(memory_.alloc(MockMemoryKind::kPinned, bytes, {}));
}

void Mock::do_free_pinned(std::span<std::byte> memory) {
  const std::scoped_lock lock(mutex_);
  memory_.free(MockMemoryKind::kPinned, memory_.base_of_pinned(memory.data()));
}

DevicePtr Mock::do_device_address_of_pinned(const std::byte* host) {
  const std::scoped_lock lock(mutex_);
  return memory_.address_of_pinned(host);
}

DeviceRange Mock::do_allocation_of(DevicePtr ptr) const {
  const std::scoped_lock lock(mutex_);
  return memory_.allocation_of(ptr);
}

std::uint64_t Mock::do_free_memory_bytes() const {
  const std::scoped_lock lock(mutex_);
  return memory_.free_bytes();
}

std::vector<AllocationSiteReport> Mock::do_alloc_report(std::size_t top, std::uint64_t min_bytes) const {
  return memory_.ledger().report(top, min_bytes);
}

std::size_t Mock::do_sweep_unreleased() {
  const std::scoped_lock lock(mutex_);
  for (const AllocationSiteReport& row : memory_.ledger().report(5, 0)) {
    log().warn("never freed: {} bytes in {} allocation(s) of {}:{}", row.bytes, row.count, row.site.file,
               row.site.line);
  }
  return memory_.sweep();
}

std::vector<RedZoneHit> Mock::do_scan_red_zones() {
  const std::scoped_lock lock(mutex_);
  return memory_.scan_red_zones();
}

void Mock::do_poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) {
  const std::scoped_lock lock(mutex_);
  memory_.poison_red_zones(first_id, last_id);
}

// ---- copies

void Mock::do_copy_h2d_blocking(DevicePtr dst, std::span<const std::byte> src) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("copy_h2d_blocking");
  std::memcpy(memory_.range(dst, src.size(), "copy to the device"), src.data(), src.size());
}

void Mock::do_copy_d2h_blocking(std::span<std::byte> dst, DevicePtr src) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("copy_d2h_blocking");
  std::memcpy(dst.data(), memory_.range(src, dst.size(), "copy to the host"), dst.size());
}

void Mock::do_copy_d2d_blocking(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("copy_d2d_blocking");
  std::memcpy(memory_.range(dst, bytes, "destination of a copy"),
              memory_.range(src, bytes, "source of a copy"), bytes);
}

void Mock::do_memset_blocking(DevicePtr dst, std::uint8_t value, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("memset_blocking");
  std::memset(memory_.range(dst, bytes, "memset"), value, bytes);
}

void Mock::do_copy_h2d_async(DevicePtr dst, std::span<const std::byte> src, StreamRef stream) {
  do_copy_h2d_async_retained(dst, src, stream);
}

void Mock::do_copy_h2d_async_retained(DevicePtr dst, std::span<const std::byte> src, StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("copy_h2d_async");
  static_cast<void>(memory_.range(dst, src.size(), "copy to the device"));
  perform(stream, {.what = "copy to the device",
                   .run =
                       [this, dst, src](StreamRef) {
                         std::memcpy(memory_.range(dst, src.size(), "copy to the device"), src.data(),
                                     src.size());
                       },
                   .addresses = {dst.address()}});
}

void Mock::do_copy_d2h_async(std::span<std::byte> dst, DevicePtr src, StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("copy_d2h_async");
  static_cast<void>(memory_.range(src, dst.size(), "copy to the host"));
  perform(stream, {.what = "copy to the host",
                   .run =
                       [this, dst, src](StreamRef) {
                         std::memcpy(dst.data(), memory_.range(src, dst.size(), "copy to the host"),
                                     dst.size());
                       },
                   .addresses = {src.address()}});
}

void Mock::do_copy_d2d_async(DevicePtr dst, DevicePtr src, std::size_t bytes, StreamRef stream) {
  do_copy_d2d_2d_async(dst, bytes, src, bytes, bytes, 1, stream);
}

void Mock::do_copy_d2d_2d_async(DevicePtr dst, std::size_t dst_pitch_bytes, DevicePtr src,
                                std::size_t src_pitch_bytes, std::size_t row_bytes, std::size_t rows,
                                StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("copy_d2d_async");
  const std::uint64_t dst_bytes = checked_add(checked_mul(dst_pitch_bytes, rows - 1), row_bytes);
  const std::uint64_t src_bytes = checked_add(checked_mul(src_pitch_bytes, rows - 1), row_bytes);
  const auto copy = [=, this](StreamRef) {
    std::byte* const to = memory_.range(dst, dst_bytes, "destination of a copy");
    const std::byte* const from = memory_.range(src, src_bytes, "source of a copy");
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(to + row * dst_pitch_bytes, from + row * src_pitch_bytes, row_bytes);
    }
  };
  static_cast<void>(memory_.range(dst, dst_bytes, "destination of a copy"));
  static_cast<void>(memory_.range(src, src_bytes, "source of a copy"));
  perform(stream, {.what = "copy on the device", .run = copy, .addresses = {dst.address(), src.address()}});
}

void Mock::do_memset_async(DevicePtr dst, std::uint8_t value, std::size_t bytes, StreamRef stream) {
  const std::scoped_lock lock(mutex_);
  fail_if_due("memset_async");
  static_cast<void>(memory_.range(dst, bytes, "memset"));
  perform(stream, {.what = "memset",
                   .run = [this, dst, value, bytes](
                              StreamRef) { std::memset(memory_.range(dst, bytes, "memset"), value, bytes); },
                   .addresses = {dst.address()}});
}

std::unique_ptr<MockBackend> make_mock_backend(const MockOptions& options) {
  return std::make_unique<Mock>(options);
}

}  // namespace metrale::gpu
