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
  // For teardown: logs what is not harmless; remembers when the context is lost.
  void check_quietly(cuda::Result result, std::string_view call) const noexcept;
  // Makes a call that gives something back, unless everything went with the context.
  template <class Call>
  void tear_down(const Call& make_call, std::string_view call) const noexcept {
    if (!context_lost()) check_quietly(make_call(), call);
  }
  // Throws DeviceError once the context is lost.
  void expect_context() const;
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

// Makes the context current on this thread and gives back what was.
class ContextScope {
 public:
  // For teardown: where it fails, the calls that follow say so.
  explicit ContextScope(const CudaHost& host) noexcept : host_(host) {
    switch_to([&](Result result, std::string_view call) { host_.check_quietly(result, call); });
  }
  // Throws DeviceError; what was current stays.
  struct OrThrow {};
  ContextScope(const CudaHost& host, OrThrow) : host_(host) {
    switch_to([&](Result result, std::string_view call) { host_.check(result, call); });
  }
  ~ContextScope() {
    if (switched_) host_.check_quietly(host_.driver().context_set_current(previous_), "cuCtxSetCurrent");
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  template <class Check>
  void switch_to(const Check& check) {
    const Result known = host_.driver().context_current(&previous_);
    check(known, "cuCtxGetCurrent");
    if (known == kSuccess && previous_ == host_.context()) return;
    const Result set = host_.driver().context_set_current(host_.context());
    check(set, "cuCtxSetCurrent");
    switched_ = known == kSuccess && set == kSuccess;
  }

  const CudaHost& host_;
  Context previous_ = nullptr;
  bool switched_ = false;
};

}  // namespace cuda
}  // namespace metrale::backends
