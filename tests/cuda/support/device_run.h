// SPDX-License-Identifier: Apache-2.0
// The same kernel call on the CPU backend and on the device: arrays are put into the backend's memory, the
// kernel is launched by its id, the result is read back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <metrale/gpu/buffer.h>
#include <metrale/gpu/kernel.h>

#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {

// Made once for the process, with the product's kernels. The device is the one that the command line
// names (devices.h).
[[nodiscard]] gpu::GpuBackend& cpu_backend();
[[nodiscard]] gpu::GpuBackend& cuda_backend();

class DeviceRun {
 public:
  explicit DeviceRun(gpu::GpuBackend& gpu) : gpu_(gpu) {}

  // The device address of a copy, which lives as long as this object.
  template <class T>
  std::uint64_t put(std::span<const T> values) {
    buffers_.emplace_back(gpu_, values.empty() ? 1 : values.size_bytes());
    gpu_.copy_h2d_blocking(buffers_.back().ptr(), std::as_bytes(values));
    return buffers_.back().ptr().address();
  }
  template <class T>
  std::uint64_t put(const std::vector<T>& values) {
    return put(std::span<const T>(values));
  }
  std::uint64_t put(const Elements& values) { return put(std::span<const std::byte>(values.bytes())); }
  std::uint64_t put(std::uint32_t value) { return put(std::span<const std::uint32_t>(&value, 1)); }
  // Room for a result, filled with 0xFF bytes: NaN in every float format.
  std::uint64_t room(std::size_t bytes) { return put(std::vector<std::byte>(bytes, std::byte{0xFF})); }

  // Blocking.
  template <class Args>
  void run(const gpu::KernelId<Args>& id, const Args& args) {
    gpu::launch(gpu_, id, gpu_.default_stream(), args);
    gpu_.synchronize(gpu_.default_stream());
  }

  template <class T>
  [[nodiscard]] std::vector<T> get(std::uint64_t address, std::size_t count) {
    std::vector<T> values(count);
    gpu_.copy_d2h_blocking(std::as_writable_bytes(std::span(values)), DevicePtr(address));
    return values;
  }
  [[nodiscard]] Elements get(quant::ElementType type, std::uint64_t address, std::size_t count) {
    const auto bytes = get<std::byte>(address, count * quant::element_bytes(type));
    Elements values(type, count);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &bytes[i * quant::element_bytes(type)], quant::element_bytes(type));
      values.set_bits(i, bits);
    }
    return values;
  }

 private:
  gpu::GpuBackend& gpu_;
  std::vector<gpu::DeviceBuffer> buffers_;
};

}  // namespace metrale::kernels
