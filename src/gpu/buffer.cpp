// SPDX-License-Identifier: Apache-2.0
#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/gpu/buffer.h>

namespace metrale::gpu {

void DeviceBuffer::reset() noexcept {
  try {
    release();
  } catch (const std::exception& error) {
    log().error("freeing a device buffer: {}", error.what());
  }
}

void DeviceBuffer::release() {
  bytes_ = 0;
  GpuBackend* const gpu = std::exchange(gpu_, nullptr);
  const DevicePtr ptr = std::exchange(ptr_, {});
  if (gpu != nullptr) gpu->free(ptr);
}

void PinnedBuffer::reset() noexcept {
  GpuBackend* const gpu = std::exchange(gpu_, nullptr);
  const std::span<std::byte> memory = std::exchange(memory_, {});
  if (gpu == nullptr) return;
  try {
    gpu->free_pinned(memory);
  } catch (const std::exception& error) {
    log().error("freeing pinned memory: {}", error.what());
  }
}

}  // namespace metrale::gpu
