// SPDX-License-Identifier: Apache-2.0
// KernelBook: the kernels of one backend by name and handle, and how each is launched. Thread-safe; callers
// have made the context current.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <metrale/gpu/kernel_args.h>
#include <metrale/gpu/types.h>

#include "backends/cuda/module_set.h"

namespace metrale::backends::cuda {

class KernelBook final : public gpu::CudaKernelContext {
 public:
  struct Kernel {
    std::string module;
    std::string function;
    bool is_foreign = false;
    std::size_t args_bytes = 0;
    DriverFunction device_function = nullptr;             // null where there is a host body
    std::optional<std::vector<std::size_t>> param_bytes;  // of it; none: the driver does not tell
    std::unique_ptr<gpu::CudaHostBody> body;
    mutable std::atomic<std::uint32_t> shared_bytes{0};  // dynamic, that a launch is known to get
    [[nodiscard]] std::string name() const { return module + "::" + function; }
  };

  KernelBook(const CudaHost& host, const gpu::CudaKernelTable& table, ModuleSet& modules);
  ~KernelBook() override;
  KernelBook(const KernelBook&) = delete;
  KernelBook& operator=(const KernelBook&) = delete;

  // Throws InvalidArgument naming module::function.
  [[nodiscard]] gpu::KernelHandle find(std::string_view module, std::string_view function);
  // Throws InvalidArgument for a handle that was never given out.
  [[nodiscard]] const Kernel& kernel(gpu::KernelHandle handle) const;
  // Throws InvalidArgument where the list is not what the kernel takes, as far as the driver tells.
  static void expect_params(const Kernel& kernel, std::span<const gpu::KernelArg> args);
  // Enqueue. Throw InvalidArgument for arguments of another size or kind, DeviceError naming the launch.
  void launch(const Kernel& kernel, const gpu::LaunchShape& shape, DriverStream stream,
              std::span<const std::byte> args) const;
  void launch_raw(const Kernel& kernel, const gpu::LaunchShape& shape, DriverStream stream,
                  const gpu::PackedKernelArgs& args) const;

  // CudaKernelContext
  [[nodiscard]] gpu::CudaFunction function(std::string_view module, std::string_view symbol,
                                           std::uint32_t shared_bytes) override;
  [[nodiscard]] const gpu::CudaDeviceFacts& device() const override { return host_.facts(); }

 private:
  void fill(Kernel& kernel);
  void read_params(Kernel& kernel) const;
  void enqueue(const Kernel& kernel, const gpu::LaunchShape& shape, DriverStream stream, void** params) const;

  const CudaHost& host_;
  const gpu::CudaKernelTable& table_;
  ModuleSet& modules_;
  mutable std::shared_mutex mutex_;
  std::map<std::pair<std::string, std::string>, gpu::KernelHandle> handles_;
  std::deque<Kernel> kernels_;  // by handle minus one; they stay where they are
};

}  // namespace metrale::backends::cuda
