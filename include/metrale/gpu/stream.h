// SPDX-License-Identifier: Apache-2.0
// Owners of streams, events and graphs, and the scope that never leaves a capture open. The backend outlives
// them.
#pragma once

#include <utility>

#include <metrale/gpu/backend.h>

namespace metrale::gpu {

// One owner for every kind of handle: `Destroy` is the backend's member that ends it. Destruction blocks
// where the backend's call does; a failure is logged.
template <class Ref, void (GpuBackend::*Destroy)(Ref)>
class OwnedHandle {
 public:
  OwnedHandle() = default;
  OwnedHandle(GpuBackend& gpu, Ref ref) noexcept : gpu_(&gpu), ref_(ref) {}
  ~OwnedHandle() { reset(); }
  OwnedHandle(OwnedHandle&& other) noexcept
      : gpu_(std::exchange(other.gpu_, nullptr)), ref_(std::exchange(other.ref_, Ref{})) {}
  OwnedHandle& operator=(OwnedHandle&& other) noexcept {
    OwnedHandle moved(std::move(other));
    std::swap(gpu_, moved.gpu_);
    std::swap(ref_, moved.ref_);
    return *this;
  }
  OwnedHandle(const OwnedHandle&) = delete;
  OwnedHandle& operator=(const OwnedHandle&) = delete;

  [[nodiscard]] Ref ref() const { return ref_; }
  [[nodiscard]] bool is_empty() const { return ref_.is_null(); }
  void reset() noexcept;

 private:
  GpuBackend* gpu_ = nullptr;
  Ref ref_;
};

using Stream = OwnedHandle<StreamRef, &GpuBackend::destroy_stream>;
using Event = OwnedHandle<EventRef, &GpuBackend::destroy_event>;
using Graph = OwnedHandle<GraphRef, &GpuBackend::destroy_graph>;

[[nodiscard]] inline Stream make_stream(GpuBackend& gpu) {
  return {gpu, gpu.create_stream()};
}
[[nodiscard]] inline Event make_event(GpuBackend& gpu) {
  return {gpu, gpu.create_event()};
}

// Captures what is enqueued on `stream` during its life. Without finish(), the capture is discarded.
class CaptureScope {
 public:
  CaptureScope(GpuBackend& gpu, StreamRef stream) : gpu_(&gpu), stream_(stream) { gpu.begin_capture(stream); }
  ~CaptureScope() { gpu_->abort_capture_if_active(stream_); }
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
  CaptureScope(CaptureScope&&) = delete;
  CaptureScope& operator=(CaptureScope&&) = delete;

  [[nodiscard]] Graph finish() { return {*gpu_, gpu_->end_capture(stream_)}; }

 private:
  GpuBackend* gpu_;
  StreamRef stream_;
};

}  // namespace metrale::gpu
