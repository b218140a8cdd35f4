// SPDX-License-Identifier: Apache-2.0
// Life, memory, kernels, streams, events and graphs; copies are in copies.cpp.
#include "backends/cuda/cuda_backend.h"

#include <atomic>
#include <new>

#include <fmt/format.h>

#include <metrale/base/log.h>
#include <metrale/gpu/op_cache.h>

namespace metrale::backends::cuda {

// ---- the fault word

FaultWord::FaultWord(const CudaHost& host) : host_(host) {
  void* memory = nullptr;
  const Result result =
      host_.driver().host_alloc(&memory, sizeof(gpu::DeviceFault), kHostPortable | kHostDeviceMap);
  if (result == kErrorOutOfMemory) {
    throw OutOfMemory("pinned", sizeof(gpu::DeviceFault), 0, "for the faults that kernels report");
  }
  host_.check(result, "cuMemHostAlloc");
  fault_ = new (memory) gpu::DeviceFault{};
}

FaultWord::~FaultWord() {
  if (host_.context_lost()) return;
  const ContextScope scope(host_);
  host_.tear_down([&] { return host_.driver().host_free(fault_); }, "cuMemFreeHost");
}

std::uint64_t FaultWord::address() const {
  DeviceAddress address = 0;
  host_.check(host_.driver().host_device_pointer(&address, fault_, 0), "cuMemHostGetDevicePointer");
  return address;
}

void FaultWord::check() const {
  // The device writes the code last.
  const gpu::DeviceFaultCode code = std::atomic_ref(fault_->code).load();
  if (code == gpu::DeviceFaultCode::kNone) [[likely]]
    return;
  throw DeviceError(fmt::format("a kernel on cuda:{}", host_.facts().ordinal), static_cast<int>(code),
                    gpu::to_string(*fault_));
}

// ---- life

CudaBackend::CudaBackend(std::shared_ptr<CudaHost> host, const CudaBackendOptions& options,
                         const gpu::CudaKernelTable& kernels)
    : host_(std::move(host)),
      table_(kernels),
      synchronize_launches_(options.synchronize_launches),
      fault_(*host_),
      memory_(*host_, options.max_memory_bytes, options.red_zone_bytes),
      staging_(*host_),
      modules_(*host_, table_, options.path, fault_.address(), memory_.transfer_stream()),
      kernels_(*host_, table_, modules_),
      default_stream_(streams_.add([this](gpu::StreamRef) {
        return std::make_shared<CudaStream>(*host_, host_->default_stream());
      })) {}

CudaBackend::~CudaBackend() {
  const ContextScope scope(*host_);
  for (const gpu::StreamRef stream : captures_.capturing()) do_abort_capture_if_active(stream);
  for (const auto& stream : streams_.all()) {
    host_->tear_down([&] { return host_->driver().stream_synchronize(stream->handle()); },
                     "cuStreamSynchronize");
  }
  try {
    op_cache().release(*this);
    do_sweep_unreleased();
  } catch (const std::exception& error) {
    log().error("closing the CUDA backend: {}", error.what());
  }
}

gpu::Capabilities CudaBackend::do_capabilities() const {
  return {.graphs = true,
          .pinned_device_address = true,
          .raw_launch = true,
          .foreign_modules = true,
          .red_zones = memory_.has_red_zones(),
          .host_memory_is_device_memory = false,
          .runs_kernels = true,
          .isolated_failures = false,
          .linear_workspace_bytes = gpu::kCudaLinearWorkspaceBytes};
}

ContextScope CudaBackend::enter() const {
  host_->expect_context();
  return ContextScope(*host_, ContextScope::OrThrow{});
}

// ---- memory

DevicePtr CudaBackend::do_alloc(std::size_t bytes, CallSite site) {
  const ContextScope scope = enter();
  return memory_.alloc(bytes, site);
}
void CudaBackend::do_free(DevicePtr ptr) {
  const ContextScope scope(*host_);
  memory_.free(ptr);
}
DevicePtr CudaBackend::do_alloc_arena(std::size_t bytes) {
  const ContextScope scope = enter();
  return memory_.alloc_arena(bytes);
}
void CudaBackend::do_free_arena(DevicePtr ptr) {
  const ContextScope scope(*host_);
  memory_.free_arena(ptr);
}
std::span<std::byte> CudaBackend::do_alloc_pinned(std::size_t bytes) {
  const ContextScope scope = enter();
  return memory_.alloc_pinned(bytes);
}
void CudaBackend::do_free_pinned(std::span<std::byte> memory) {
  const ContextScope scope(*host_);
  memory_.free_pinned(memory);
}
DevicePtr CudaBackend::do_device_address_of_pinned(const std::byte* host) {
  const ContextScope scope = enter();
  return memory_.device_address_of_pinned(host);
}

std::size_t CudaBackend::do_sweep_unreleased() {
  const ContextScope scope(*host_);
  gpu::warn_of_leaks(memory_.book().device);
  return memory_.sweep();
}

std::vector<gpu::RedZoneHit> CudaBackend::do_scan_red_zones() {
  const ContextScope scope = enter();
  return memory_.scan_red_zones();
}
void CudaBackend::do_poison_red_zones(std::uint64_t first_id, std::uint64_t last_id) {
  const ContextScope scope = enter();
  memory_.poison_red_zones(first_id, last_id);
}

// ---- kernels

gpu::KernelHandle CudaBackend::do_kernel(std::string_view module, std::string_view function) {
  const ContextScope scope = enter();
  return kernels_.find(module, function);
}

void CudaBackend::do_launch(gpu::KernelHandle kernel, const gpu::LaunchShape& shape, gpu::StreamRef stream,
                            std::span<const std::byte> args) {
  const ContextScope scope = enter();
  const KernelBook::Kernel& entry = kernels_.kernel(kernel);
  const std::span words(reinterpret_cast<const std::uint64_t*>(args.data()), args.size() / 8);
  submit(
      stream, [&] { return "kernel " + entry.name(); }, words,
      [&](DriverStream to, CudaCapture*) { kernels_.launch(entry, shape, to, args); });
  if (synchronize_launches_) wait_after_launch(entry, stream);
}

void CudaBackend::do_launch_raw(gpu::KernelHandle kernel, const gpu::LaunchShape& shape,
                                gpu::StreamRef stream, std::span<const gpu::KernelArg> args) {
  const ContextScope scope = enter();
  const KernelBook::Kernel& entry = kernels_.kernel(kernel);
  KernelBook::expect_params(entry, args);
  const gpu::PackedKernelArgs packed(args);
  submit(
      stream, [&] { return "kernel " + entry.name(); }, packed.slots(),
      [&](DriverStream to, CudaCapture*) { kernels_.launch_raw(entry, shape, to, packed); });
  if (synchronize_launches_) wait_after_launch(entry, stream);
}

void CudaBackend::wait_after_launch(const KernelBook::Kernel& kernel, gpu::StreamRef stream) {
  if (captures_.is_capturing(stream)) return;
  const Result result = host_->driver().stream_synchronize(streams_.find(stream)->handle());
  if (result != kSuccess) host_->fail(result, "kernel " + kernel.name());
  fault_.check();
}

void CudaBackend::do_load_module(std::string_view module, std::span<const std::byte> image) {
  const ContextScope scope = enter();
  modules_.load_foreign(module, image);
}

gpu::DeviceRange CudaBackend::do_device_symbol(std::string_view module, std::string_view symbol) {
  const ContextScope scope = enter();
  const gpu::DeviceRange range = modules_.symbol(module, symbol);
  memory_.admit(range);
  return range;
}

// ---- streams

gpu::StreamRef CudaBackend::do_create_stream() {
  const ContextScope scope = enter();
  return streams_.add([this](gpu::StreamRef) { return std::make_shared<CudaStream>(*host_); });
}

void CudaBackend::do_destroy_stream(gpu::StreamRef stream) {
  const ContextScope scope(*host_);
  const auto target = streams_.find(stream);
  host_->tear_down([&] { return host_->driver().stream_synchronize(target->handle()); },
                   "cuStreamSynchronize");
  streams_.remove(stream);
}

void CudaBackend::do_synchronize(gpu::StreamRef stream) {
  const ContextScope scope = enter();
  host_->check(host_->driver().stream_synchronize(streams_.find(stream)->handle()), "cuStreamSynchronize");
  fault_.check();
}

void CudaBackend::do_bind_to_thread() {
  host_->check(host_->driver().context_set_current(host_->context()), "cuCtxSetCurrent");
}

// ---- graphs

void CudaBackend::do_begin_capture(gpu::StreamRef stream) {
  const ContextScope scope = enter();
  const auto target = streams_.find(stream);
  expects(stream != default_stream_,
          "begin_capture on the default stream, which other backends of the device use too: capture on a "
          "stream of your own");
  captures_.begin(stream);
  // Other streams and other threads go on meanwhile.
  const Result result = host_->driver().stream_begin_capture(target->handle(), kCaptureRelaxed);
  if (result == kSuccess) return;
  captures_.close(stream);
  host_->fail(result, "cuStreamBeginCapture");
}

gpu::GraphRef CudaBackend::do_end_capture(gpu::StreamRef stream) {
  const ContextScope scope = enter();
  static_cast<void>(streams_.find(stream));
  const auto capture = captures_.close(stream);
  DriverGraph graph = nullptr;
  try {
    if (capture != nullptr) {
      const DriverStream origin = streams_.find(capture->session.origin())->handle();
      const Result result = host_->driver().stream_end_capture(origin, &graph);
      CaptureBook::expect_complete(capture.get(), stream);
      host_->check(result, "cuStreamEndCapture");
    }
    CaptureBook::expect_complete(capture.get(), stream);
    return graphs_.add([&](gpu::GraphRef) {
      return std::make_shared<CudaGraph>(*host_, staging_, std::exchange(graph, nullptr), *capture);
    });
  } catch (...) {
    if (graph != nullptr) {
      host_->tear_down([&] { return host_->driver().graph_destroy(graph); }, "cuGraphDestroy");
    }
    if (capture != nullptr) discard(capture.get());
    throw;
  }
}

bool CudaBackend::do_stream_is_capturing(gpu::StreamRef stream) const {
  static_cast<void>(streams_.find(stream));
  return captures_.is_capturing(stream);
}

void CudaBackend::do_abort_capture_if_active(gpu::StreamRef stream) noexcept {
  const auto capture = captures_.close(stream);
  if (capture == nullptr || host_->context_lost()) return;
  const ContextScope scope(*host_);
  DriverGraph graph = nullptr;
  const DriverStream origin = streams_.find(capture->session.origin())->handle();
  const Result result = host_->driver().stream_end_capture(origin, &graph);
  // What else it may say is about the capture, which is of no use any more.
  if (means_context_lost(result)) host_->check_quietly(result, "cuStreamEndCapture");
  if (graph != nullptr) {
    host_->tear_down([&] { return host_->driver().graph_destroy(graph); }, "cuGraphDestroy");
  }
  discard(capture.get());
}

void CudaBackend::discard(CudaCapture* capture) noexcept {
  for (StagingPiece* piece : capture->pieces) staging_.give_back(*piece);
  capture->pieces.clear();
}

void CudaBackend::do_launch_graph(gpu::GraphRef graph, gpu::StreamRef stream) {
  const ContextScope scope = enter();
  const auto target = streams_.find(stream);
  graphs_.find(graph)->launch(target->handle(), memory_.book());
}

void CudaBackend::do_destroy_graph(gpu::GraphRef graph) {
  const ContextScope scope(*host_);
  graphs_.remove(graph);
}

// ---- events

gpu::EventRef CudaBackend::do_create_event() {
  const ContextScope scope = enter();
  return events_.add([this](gpu::EventRef) { return std::make_shared<CudaEvent>(*host_); });
}

void CudaBackend::do_destroy_event(gpu::EventRef event) {
  events_.remove(event);
}

void CudaBackend::do_record_event(gpu::EventRef event, gpu::StreamRef stream) {
  const ContextScope scope = enter();
  const auto marked = events_.find(event);
  const auto target = streams_.find(stream);
  marked->record(target->handle(), captures_.point(stream).value_or(CapturePoint{}));
}

void CudaBackend::do_stream_wait_event(gpu::StreamRef stream, gpu::EventRef event) {
  const ContextScope scope = enter();
  const auto target = streams_.find(stream);
  const auto marked = events_.find(event);
  if (const auto point = marked->capture_point(); point.capture != nullptr) {
    captures_.wait(stream, point);
  } else if (!marked->was_recorded()) {
    return;
  } else {
    expects(!captures_.is_capturing(stream),
            "a capturing stream waits for an event that was recorded outside of its capture");
  }
  host_->check(host_->driver().stream_wait_event(target->handle(), marked->handle(), 0), "cuStreamWaitEvent");
}

std::shared_ptr<CudaEvent> CudaBackend::event_for_the_host(gpu::EventRef event) const {
  const auto marked = events_.find(event);
  expects(marked->capture_point().capture == nullptr,
          "the event was recorded in a capture: nothing on the host can wait for it");
  return marked;
}

void CudaBackend::do_event_synchronize(gpu::EventRef event) {
  const ContextScope scope = enter();
  const auto marked = event_for_the_host(event);
  host_->check(host_->driver().event_synchronize(marked->handle()), "cuEventSynchronize");
  fault_.check();
}

bool CudaBackend::do_event_query(gpu::EventRef event) {
  const ContextScope scope = enter();
  const auto marked = event_for_the_host(event);
  const Result result = host_->driver().event_query(marked->handle());
  if (result == kErrorNotReady) return false;
  host_->check(result, "cuEventQuery");
  fault_.check();
  return true;
}

}  // namespace metrale::backends::cuda

namespace metrale::backends {

std::unique_ptr<gpu::GpuBackend> make_cuda_backend(std::shared_ptr<CudaHost> host,
                                                   const CudaBackendOptions& options,
                                                   const gpu::CudaKernelTable& kernels) {
  expects(host != nullptr, "make_cuda_backend: no host");
  host->expect_context();
  const cuda::ContextScope scope(*host, cuda::ContextScope::OrThrow{});
  // Not moved: where this throws, the scope still needs the host.
  return std::make_unique<cuda::CudaBackend>(host, options, kernels);
}

}  // namespace metrale::backends
