// SPDX-License-Identifier: Apache-2.0
// Owners of device and pinned memory: move-only, empty is legal. The backend outlives them.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include <metrale/gpu/backend.h>

namespace metrale::gpu {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Zero bytes makes an empty buffer with a null address. Throws OutOfMemory.
  DeviceBuffer(GpuBackend& gpu, std::size_t bytes, CallSite site = CallSite::here())
      : gpu_(&gpu), ptr_(bytes == 0 ? DevicePtr{} : gpu.alloc(bytes, site)), bytes_(bytes) {}
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : gpu_(std::exchange(other.gpu_, nullptr)),
        ptr_(std::exchange(other.ptr_, {})),
        bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer moved(std::move(other));
    swap(moved);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  [[nodiscard]] DevicePtr ptr() const { return ptr_; }
  [[nodiscard]] std::size_t size_bytes() const { return bytes_; }
  // Blocking. Idempotent; a failure is logged. Work that uses the buffer has been waited for.
  void reset() noexcept;
  // As reset(), but a failure is thrown; the buffer is empty either way.
  void release();
  void swap(DeviceBuffer& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(ptr_, other.ptr_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  GpuBackend* gpu_ = nullptr;
  DevicePtr ptr_;
  std::size_t bytes_ = 0;
};

class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  // Zeroed. Throws OutOfMemory.
  PinnedBuffer(GpuBackend& gpu, std::size_t bytes)
      : gpu_(&gpu), memory_(bytes == 0 ? std::span<std::byte>{} : gpu.alloc_pinned(bytes)) {}
  ~PinnedBuffer() { reset(); }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : gpu_(std::exchange(other.gpu_, nullptr)), memory_(std::exchange(other.memory_, {})) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    PinnedBuffer moved(std::move(other));
    std::swap(gpu_, moved.gpu_);
    std::swap(memory_, moved.memory_);
    return *this;
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  [[nodiscard]] std::span<std::byte> span() const { return memory_; }
  [[nodiscard]] std::byte* data() const { return memory_.data(); }
  [[nodiscard]] std::size_t size_bytes() const { return memory_.size(); }
  // As GpuBackend::device_address_of_pinned.
  [[nodiscard]] DevicePtr device_address() const { return gpu_->device_address_of_pinned(memory_.data()); }
  void reset() noexcept;

 private:
  GpuBackend* gpu_ = nullptr;
  std::span<std::byte> memory_;
};

}  // namespace metrale::gpu
