// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernel_book.h"

#include <mutex>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::backends::cuda {
namespace {

// Nothing to do where a dimension is zero; the driver would refuse it.
bool is_empty(const gpu::LaunchShape& shape) {
  return shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0;
}

[[noreturn]] void fail_launch(const CudaHost& host, Result result, std::string_view call,
                              const gpu::LaunchShape& shape, std::string_view name) {
  host.fail(result,
            fmt::format("{} of {} with a grid of {}x{}x{} blocks of {}x{}x{} threads and {} bytes of "
                        "shared memory (a block can ask for {})",
                        call, name, shape.grid.x, shape.grid.y, shape.grid.z, shape.block.x, shape.block.y,
                        shape.block.z, shape.shared_bytes, host.facts().max_shared_bytes));
}

void launch_function(const CudaHost& host, DriverFunction function, const gpu::LaunchShape& shape,
                     DriverStream stream, void** params, std::string_view name) {
  const Result result =
      host.driver().launch_kernel(function, shape.grid.x, shape.grid.y, shape.grid.z, shape.block.x,
                                  shape.block.y, shape.block.z, shape.shared_bytes, stream, params, nullptr);
  if (result != kSuccess) [[unlikely]]
    fail_launch(host, result, "cuLaunchKernel", shape, name);
}

// What a host body enqueues.
class BodyLaunch final : public gpu::CudaLaunch {
 public:
  BodyLaunch(const CudaHost& host, DriverStream stream, const KernelBook::Kernel& kernel)
      : host_(host), stream_(stream), kernel_(kernel) {}

  void kernel(gpu::CudaFunction function, const gpu::LaunchShape& shape,
              std::span<const std::byte> args) override {
    if (is_empty(shape)) return;
    void* param = const_cast<std::byte*>(args.data());
    launch_function(host_, static_cast<DriverFunction>(function.function), shape, stream_, &param,
                    kernel_.name());
  }
  [[nodiscard]] void* stream() const override { return stream_; }

 private:
  const CudaHost& host_;
  DriverStream stream_;
  const KernelBook::Kernel& kernel_;
};

}  // namespace

KernelBook::KernelBook(const CudaHost& host, const gpu::CudaKernelTable& table, ModuleSet& modules)
    : host_(host), table_(table), modules_(modules) {}

// Bodies give back what they have of the device, so they end in its context, or without a call where it is
// lost.
KernelBook::~KernelBook() {
  if (host_.context_lost()) {
    for (const Kernel& kernel : kernels_) {
      if (kernel.body != nullptr) kernel.body->abandon();
    }
    return;
  }
  const ContextScope scope(host_);
  kernels_.clear();
}

gpu::CudaFunction KernelBook::function(std::string_view module, std::string_view symbol,
                                       std::uint32_t shared_bytes) {
  const DriverFunction function = modules_.function(module, symbol);
  const Result result = modules_.allow_shared(function, shared_bytes);
  if (result != kSuccess) {
    host_.fail(result,
               fmt::format("cuFuncSetAttribute of {}::{}: {} bytes of shared memory (a block can ask for {})",
                           module, symbol, shared_bytes, host_.facts().max_shared_bytes));
  }
  return {function};
}

void KernelBook::fill(Kernel& kernel) {
  const auto entry = table_.entries().find({kernel.module, kernel.function});
  kernel.is_foreign = entry == table_.entries().end();
  if (!kernel.is_foreign) kernel.args_bytes = entry->second.args_bytes;
  if (!kernel.is_foreign && entry->second.make_body) {
    kernel.body = entry->second.make_body(*this);
  } else {
    kernel.device_function = modules_.function(kernel.module, kernel.function);
    read_params(kernel);
  }
}

void KernelBook::read_params(Kernel& kernel) const {
  if (host_.driver().function_param_info == nullptr) return;
  std::vector<std::size_t> found;
  for (;;) {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    const Result result =
        host_.driver().function_param_info(kernel.device_function, found.size(), &offset, &bytes);
    if (result == kErrorInvalidValue) break;
    if (result != kSuccess) host_.fail(result, "cuFuncGetParamInfo of " + kernel.name());
    found.push_back(bytes);
  }
  kernel.param_bytes = std::move(found);
}

void KernelBook::expect_params(const Kernel& kernel, std::span<const gpu::KernelArg> args) {
  if (!kernel.param_bytes) return;
  const std::vector<std::size_t>& wanted = *kernel.param_bytes;
  if (args.size() != wanted.size()) {
    throw InvalidArgument(
        fmt::format("kernel {} takes {} argument(s), not {}", kernel.name(), wanted.size(), args.size()));
  }
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto* const value = std::get_if<std::span<const std::byte>>(&args[i]);
    const std::size_t bytes = value != nullptr ? value->size() : sizeof(DeviceAddress);
    if (bytes == wanted[i]) continue;
    throw InvalidArgument(fmt::format("argument {} (from 0) of kernel {} has {} bytes, not the {} given", i,
                                      kernel.name(), wanted[i], bytes));
  }
}

gpu::KernelHandle KernelBook::find(std::string_view module, std::string_view function) {
  const std::pair<std::string, std::string> name(module, function);
  const std::scoped_lock lock(mutex_);
  if (const auto known = handles_.find(name); known != handles_.end()) return known->second;
  Kernel& kernel = kernels_.emplace_back();
  try {
    kernel.module = module;
    kernel.function = function;
    fill(kernel);
    const gpu::KernelHandle handle(kernels_.size());
    handles_.emplace(name, handle);
    return handle;
  } catch (...) {
    kernels_.pop_back();
    throw;
  }
}

const KernelBook::Kernel& KernelBook::kernel(gpu::KernelHandle handle) const {
  const std::shared_lock lock(mutex_);
  expects(!handle.is_null() && handle.value() <= kernels_.size(), "launch: no such kernel handle");
  return kernels_[handle.value() - 1];
}

void KernelBook::launch(const Kernel& kernel, const gpu::LaunchShape& shape, DriverStream stream,
                        std::span<const std::byte> args) const {
  if (kernel.is_foreign) {
    throw InvalidArgument(fmt::format(
        "kernel {} is from outside and takes a list of arguments: use launch_raw", kernel.name()));
  }
  if (args.size() != kernel.args_bytes) {
    throw InvalidArgument(fmt::format("kernel {} takes {} bytes of arguments, not {}", kernel.name(),
                                      kernel.args_bytes, args.size()));
  }
  if (kernel.body != nullptr) {
    BodyLaunch to(host_, stream, kernel);
    kernel.body->launch(to, args);
    return;
  }
  void* param = const_cast<std::byte*>(args.data());
  enqueue(kernel, shape, stream, &param);
}

void KernelBook::launch_raw(const Kernel& kernel, const gpu::LaunchShape& shape, DriverStream stream,
                            const gpu::PackedKernelArgs& args) const {
  if (kernel.body != nullptr) {
    throw InvalidArgument(
        fmt::format("kernel {} has a body on the host: launch it with its argument struct", kernel.name()));
  }
  enqueue(kernel, shape, stream, const_cast<void**>(args.params().data()));
}

void KernelBook::enqueue(const Kernel& kernel, const gpu::LaunchShape& shape, DriverStream stream,
                         void** params) const {
  if (is_empty(shape)) return;
  if (shape.shared_bytes > kernel.shared_bytes.load(std::memory_order_relaxed)) {
    const Result result = modules_.allow_shared(kernel.device_function, shape.shared_bytes);
    if (result != kSuccess) fail_launch(host_, result, "cuFuncSetAttribute", shape, kernel.name());
    kernel.shared_bytes.store(shape.shared_bytes, std::memory_order_relaxed);
  }
  launch_function(host_, kernel.device_function, shape, stream, params, kernel.name());
}

}  // namespace metrale::backends::cuda
