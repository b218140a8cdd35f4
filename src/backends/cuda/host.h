// SPDX-License-Identifier: Apache-2.0
// CudaHost: a device's primary context, the driver it came from and the default stream.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include <metrale/backends/cuda.h>
#include <metrale/gpu/cuda_kernel_table.h>

#include "backends/cuda/driver.h"

namespace metrale::backends {

// Thread-safe.
class CudaHost {
 public:
  CudaHost(std::shared_ptr<const cuda::Driver> driver, int ordinal);
  ~CudaHost();
  CudaHost(const CudaHost&) = delete;
  CudaHost& operator=(const CudaHost&) = delete;

  [[nodiscard]] const cuda::Driver& driver() const { return *driver_; }
  [[nodiscard]] const gpu::CudaDeviceFacts& facts() const { return facts_; }
  [[nodiscard]] bool is_integrated() const { return integrated_; }
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }
  [[nodiscard]] cuda::Context context() const { return context_; }
  [[nodiscard]] cuda::DriverStream default_stream() const { return default_stream_; }
  // Bytes that the driver could still give.
  [[nodiscard]] std::uint64_t free_bytes() const;

  // Throws DeviceError naming `call` unless `result` is success; remembers when the context is lost.
  void check(cuda::Result result, std::string_view call) const {
    if (result != cuda::kSuccess) [[unlikely]]
      fail(result, call);
  }
  [[noreturn]] void fail(cuda::Result result, std::string_view call) const;
  // For teardown: logs what is not harmless.
  void check_quietly(cuda::Result result, std::string_view call) const noexcept;
  [[nodiscard]] bool context_lost() const { return context_lost_.load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<const cuda::Driver> driver_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::DriverStream default_stream_ = nullptr;
  gpu::CudaDeviceFacts facts_;
  std::uint64_t total_bytes_ = 0;
  bool integrated_ = false;
  mutable std::atomic<bool> context_lost_{false};
};

namespace cuda {

// Makes the context current on this thread and gives back what was. Where that fails, the calls that follow
// say so.
class ContextScope {
 public:
  explicit ContextScope(const CudaHost& host) : driver_(host.driver()) {
    driver_.context_current(&previous_);
    switched_ = previous_ != host.context();
    if (switched_) driver_.context_set_current(host.context());
  }
  ~ContextScope() {
    if (switched_) driver_.context_set_current(previous_);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  Context previous_ = nullptr;
  bool switched_ = false;
};

}  // namespace cuda
}  // namespace metrale::backends
