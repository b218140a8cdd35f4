// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/log.h>
#include <metrale/gpu/op_cache.h>

namespace metrale::backends::cpu {
namespace {

std::vector<CpuKernel> flatten(const gpu::CpuKernelTable& table) {
  std::vector<CpuKernel> kernels;
  for (const auto& [name, entry] : table.entries()) {
    kernels.push_back({.module = name.first, .function = name.second, .entry = entry});
  }
  return kernels;
}

// The first kernel that is not before (module, function).
auto lower_bound(const std::vector<CpuKernel>& kernels, std::string_view module, std::string_view function) {
  return std::lower_bound(kernels.begin(), kernels.end(), std::pair(module, function),
                          [](const CpuKernel& kernel, const auto& name) {
                            return std::pair<std::string_view, std::string_view>(kernel.module,
                                                                                 kernel.function) < name;
                          });
}

// The bytes that `rows` rows at a pitch span.
std::uint64_t span_2d(std::size_t pitch_bytes, std::size_t row_bytes, std::size_t rows) {
  return checked_add(checked_mul(pitch_bytes, rows - 1), row_bytes);
}

}  // namespace

CpuBackend::CpuBackend(const CpuBackendOptions& options, const gpu::CpuKernelTable& kernels)
    : kernels_(flatten(kernels)),
      memory_(options.max_memory_bytes, options.red_zone_bytes,
              {options.numa, options.cpus.empty() ? usable_cpus() : options.cpus}),
      scheduler_(pool_, options.schedule_seed),
      pool_({.threads = options.threads, .cpus = options.cpus}),
      default_stream_(do_create_stream()) {}

CpuBackend::~CpuBackend() {
  for (const auto& stream : streams_.all()) stream->wait();
  try {
    op_cache().release(*this);
    do_sweep_unreleased();
  } catch (const std::exception& error) {
    log().error("closing the CPU backend: {}", error.what());
  }
}

gpu::Capabilities CpuBackend::do_capabilities() const {
  return {.graphs = true,
          .pinned_device_address = true,
          .raw_launch = false,
          .foreign_modules = false,
          .red_zones = memory_.has_red_zones(),
          .host_memory_is_device_memory = true,
          .runs_kernels = true,
          .isolated_failures = true};
}

std::uint32_t CpuBackend::do_sm_count() const {
  return pool_.size();
}

// ---- memory

DevicePtr CpuBackend::do_alloc(std::size_t bytes, CallSite site) {
  return memory_.alloc(bytes, site);
}
void CpuBackend::do_free(DevicePtr ptr) {
  memory_.free(ptr);
}
DevicePtr CpuBackend::do_alloc_arena(std::size_t bytes) {
  return memory_.alloc_arena(bytes);
}
void CpuBackend::do_free_arena(DevicePtr ptr) {
  memory_.free_arena(ptr);
}
std::span<std::byte> CpuBackend::do_alloc_pinned(std::size_t bytes) {
  return memory_.alloc_pinned(bytes);
}
void CpuBackend::do_free_pinned(std::span<std::byte> memory) {
  memory_.free_pinned(memory);
}
DevicePtr CpuBackend::do_device_address_of_pinned(const std::byte* host) {
  return memory_.device_address_of_pinned(host);
}
std::span<std::byte> CpuBackend::do_host_range(DevicePtr ptr, std::size_t bytes) {
  return {memory_.range(ptr, bytes, "host_range"), bytes};
}
gpu::DeviceRange CpuBackend::do_allocation_of(DevicePtr ptr) const {
  return memory_.book().allocation_of(ptr);
}

std::vector<gpu::AllocationSiteReport> CpuBackend::do_alloc_report(std::size_t top,
                                                                   std::uint64_t min_bytes) const {
  return memory_.ledger().report(top, min_bytes);
}

std::size_t CpuBackend::do_sweep_unreleased() {
  gpu::warn_of_leaks(memory_.ledger());
  return memory_.sweep();
}

std::vector<gpu::RedZoneHit> CpuBackend::do_scan_red_zones() {
  return memory_.scan_red_zones();
}
void CpuBackend::do_poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) {
  memory_.poison_red_zones(first_id, last_id);
}

// ---- blocking copies

void CpuBackend::do_copy_h2d_blocking(DevicePtr dst, std::span<const std::byte> src) {
  std::memcpy(memory_.range(dst, src.size(), "copy to the device"), src.data(), src.size());
}

void CpuBackend::do_copy_d2h_blocking(std::span<std::byte> dst, DevicePtr src) {
  std::memcpy(dst.data(), memory_.range(src, dst.size(), "copy to the host"), dst.size());
}

void CpuBackend::do_copy_d2d_blocking(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  std::memcpy(memory_.range(dst, bytes, "destination of a copy"),
              memory_.range(src, bytes, "source of a copy"), bytes);
}

void CpuBackend::do_memset_blocking(DevicePtr dst, std::uint8_t value, std::size_t bytes) {
  std::memset(memory_.range(dst, bytes, "memset"), value, bytes);
}

// ---- enqueued work

template <class Append>
void CpuBackend::submit(gpu::StreamRef stream, Append&& append) {
  const auto target = streams_.find(stream);
  const bool recorded = captures_.record(stream, [&](Capture& capture) {
    append(capture.nodes);
    capture.note_uses(memory_.book());
  });
  if (!recorded) target->enqueue(append);
}

void CpuBackend::do_copy_h2d_async(DevicePtr dst, std::span<const std::byte> src, gpu::StreamRef stream) {
  std::byte* const to = memory_.range(dst, src.size(), "copy to the device");
  submit(stream, [&](Batch& batch) { batch.add_staged_copy(to, src); });
}

void CpuBackend::do_copy_h2d_async_retained(DevicePtr dst, std::span<const std::byte> src,
                                            gpu::StreamRef stream) {
  std::byte* const to = memory_.range(dst, src.size(), "copy to the device");
  submit(stream, [&](Batch& batch) {
    batch.add(CopyCommand{.dst = to, .src = src.data(), .bytes = src.size(), .to_device = true});
  });
}

void CpuBackend::do_copy_d2h_async(std::span<std::byte> dst, DevicePtr src, gpu::StreamRef stream) {
  const std::byte* const from = memory_.range(src, dst.size(), "copy to the host");
  submit(stream, [&](Batch& batch) {
    batch.add(CopyCommand{.dst = dst.data(), .src = from, .bytes = dst.size(), .from_device = true});
  });
}

void CpuBackend::do_copy_d2d_async(DevicePtr dst, DevicePtr src, std::size_t bytes, gpu::StreamRef stream) {
  std::byte* const to = memory_.range(dst, bytes, "destination of a copy");
  const std::byte* const from = memory_.range(src, bytes, "source of a copy");
  submit(stream, [&](Batch& batch) {
    batch.add(CopyCommand{.dst = to, .src = from, .bytes = bytes, .to_device = true, .from_device = true});
  });
}

void CpuBackend::do_copy_d2d_2d_async(DevicePtr dst, std::size_t dst_pitch_bytes, DevicePtr src,
                                      std::size_t src_pitch_bytes, std::size_t row_bytes, std::size_t rows,
                                      gpu::StreamRef stream) {
  std::byte* const to =
      memory_.range(dst, span_2d(dst_pitch_bytes, row_bytes, rows), "destination of a 2D copy");
  const std::byte* const from =
      memory_.range(src, span_2d(src_pitch_bytes, row_bytes, rows), "source of a 2D copy");
  submit(stream, [&](Batch& batch) {
    batch.add(Copy2dCommand{.dst = to,
                            .dst_pitch_bytes = dst_pitch_bytes,
                            .src = from,
                            .src_pitch_bytes = src_pitch_bytes,
                            .row_bytes = row_bytes,
                            .rows = rows});
  });
}

void CpuBackend::do_memset_async(DevicePtr dst, std::uint8_t value, std::size_t bytes,
                                 gpu::StreamRef stream) {
  std::byte* const to = memory_.range(dst, bytes, "memset");
  submit(stream, [&](Batch& batch) { batch.add(MemsetCommand{.dst = to, .bytes = bytes, .value = value}); });
}

// ---- launch

bool CpuBackend::do_has_module(std::string_view module) const {
  const auto first = lower_bound(kernels_, module, "");
  return first != kernels_.end() && first->module == module;
}

gpu::KernelHandle CpuBackend::do_kernel(std::string_view module, std::string_view function) {
  const auto found = lower_bound(kernels_, module, function);
  if (found == kernels_.end() || found->module != module || found->function != function) {
    throw InvalidArgument(
        fmt::format("the CPU backend has no kernel {}::{} ({})", module, function,
                    do_has_module(module) ? "the module is there, the function is not" : "no such module"));
  }
  return gpu::KernelHandle(static_cast<std::uint64_t>(found - kernels_.begin()) + 1);
}

void CpuBackend::do_launch(gpu::KernelHandle kernel, const gpu::LaunchShape&, gpu::StreamRef stream,
                           std::span<const std::byte> args) {
  expects(!kernel.is_null() && kernel.value() <= kernels_.size(), "launch: no such kernel handle");
  const CpuKernel& entry = kernels_[kernel.value() - 1];
  if (args.size() != entry.entry.args_bytes) {
    throw InvalidArgument(fmt::format("kernel {}::{} takes {} bytes of arguments, not {}", entry.module,
                                      entry.function, entry.entry.args_bytes, args.size()));
  }
  submit(stream, [&](Batch& batch) { batch.add_kernel(entry, args); });
}

// ---- streams

gpu::StreamRef CpuBackend::do_create_stream() {
  return streams_.add(
      [this](gpu::StreamRef ref) { return std::make_shared<CpuStream>(ref, scheduler_, memory_); });
}

void CpuBackend::do_destroy_stream(gpu::StreamRef stream) {
  streams_.find(stream)->wait();
  streams_.remove(stream);
}

void CpuBackend::do_synchronize(gpu::StreamRef stream) {
  const auto target = streams_.find(stream);
  target->wait();
  throw_if_failed(target->failure());
}

// ---- graphs

void CpuBackend::do_begin_capture(gpu::StreamRef stream) {
  static_cast<void>(streams_.find(stream));
  captures_.begin(stream);
}

gpu::GraphRef CpuBackend::do_end_capture(gpu::StreamRef stream) {
  static_cast<void>(streams_.find(stream));
  const auto capture = captures_.close(stream);
  CaptureBook::expect_complete(capture.get(), stream);
  auto graph = std::make_shared<CpuGraph>(std::move(capture->nodes), std::move(capture->uses));
  return graphs_.add([&](gpu::GraphRef) { return std::move(graph); });
}

bool CpuBackend::do_stream_is_capturing(gpu::StreamRef stream) const {
  static_cast<void>(streams_.find(stream));
  return captures_.is_capturing(stream);
}

void CpuBackend::do_abort_capture_if_active(gpu::StreamRef stream) noexcept {
  captures_.close(stream);
}

void CpuBackend::do_launch_graph(gpu::GraphRef graph, gpu::StreamRef stream) {
  const auto nodes = graphs_.find(graph);
  const auto target = streams_.find(stream);
  nodes->check_uses(memory_.book());
  const auto append = [&](Batch& batch) { batch.add(GraphCommand{CpuGraph::start_replay(nodes)}); };
  target->enqueue(append);
}

void CpuBackend::do_destroy_graph(gpu::GraphRef graph) {
  graphs_.remove(graph)->wait_until_idle();
}

// ---- events

gpu::EventRef CpuBackend::do_create_event() {
  return events_.add([](gpu::EventRef) { return std::make_shared<CpuEvent>(); });
}

void CpuBackend::do_destroy_event(gpu::EventRef event) {
  events_.remove(event);
}

void CpuBackend::do_record_event(gpu::EventRef event, gpu::StreamRef stream) {
  const auto marked = events_.find(event);
  const auto target = streams_.find(stream);
  if (const auto point = captures_.point(stream)) {
    marked->set_capture_point(*point);
    return;
  }
  const auto record = std::make_shared<EventRecord>();
  const auto append = [&](Batch& batch) { batch.add(RecordCommand{record}); };
  target->enqueue(append);
  marked->set_record(record);
}

void CpuBackend::do_stream_wait_event(gpu::StreamRef stream, gpu::EventRef event) {
  const auto target = streams_.find(stream);
  const auto marked = events_.find(event);
  if (const auto point = marked->capture_point(); point.capture != nullptr) {
    captures_.wait(stream, point);
    return;
  }
  const auto record = marked->record();
  if (record == nullptr) return;
  expects(!captures_.is_capturing(stream),
          "a capturing stream waits for an event that was recorded outside of its capture");
  if (record->is_complete() && record->failure() == nullptr) return;
  const auto append = [&](Batch& batch) { batch.add(WaitCommand{record}); };
  target->enqueue(append);
}

std::shared_ptr<EventRecord> CpuBackend::record_of(gpu::EventRef event) const {
  const auto marked = events_.find(event);
  expects(marked->capture_point().capture == nullptr,
          "the event was recorded in a capture: nothing on the host can wait for it");
  return marked->record();
}

void CpuBackend::do_event_synchronize(gpu::EventRef event) {
  const auto record = record_of(event);
  if (record == nullptr) return;
  record->wait();
  throw_if_failed(record->failure());
}

bool CpuBackend::do_event_query(gpu::EventRef event) {
  const auto record = record_of(event);
  if (record == nullptr) return true;
  if (!record->is_complete()) return false;
  throw_if_failed(record->failure());
  return true;
}

}  // namespace metrale::backends::cpu

namespace metrale::backends {

std::unique_ptr<gpu::GpuBackend> make_cpu_backend(const CpuBackendOptions& options,
                                                  const gpu::CpuKernelTable& kernels) {
  return std::make_unique<cpu::CpuBackend>(options, kernels);
}

}  // namespace metrale::backends
