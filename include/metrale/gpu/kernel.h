// SPDX-License-Identifier: Apache-2.0
// One kernel = one name, one argument struct, a body per backend. KernelId carries the name and the type;
// launch() resolves the name once per backend and enqueues.
//
// An argument struct is trivially copyable, holds integers and floats only (addresses as std::uint64_t), has
// no padding, and has a free function `LaunchShape launch_shape(const Args&)` beside it.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

#include <metrale/gpu/backend.h>
#include <metrale/gpu/op_cache.h>

namespace metrale::gpu {

template <class Args>
struct KernelId {
  static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= 8);
  std::string_view module;    // the kernel family
  std::string_view function;  // the device symbol
};

// Enqueues. Throws as GpuBackend::kernel and GpuBackend::launch do.
template <class Args>
void launch(GpuBackend& gpu, const KernelId<Args>& id, StreamRef stream, const Args& args) {
  gpu.launch(gpu.op_cache().kernel(gpu, id.module, id.function), launch_shape(args), stream,
             std::as_bytes(std::span(&args, 1)));
}

// A kernel resolved once, for hot paths. Keeps a reference to the backend.
template <class Args>
class BoundKernel {
 public:
  BoundKernel(GpuBackend& gpu, const KernelId<Args>& id)
      : gpu_(&gpu), handle_(gpu.op_cache().kernel(gpu, id.module, id.function)) {}

  void operator()(StreamRef stream, const Args& args) const {
    gpu_->launch(handle_, launch_shape(args), stream, std::as_bytes(std::span(&args, 1)));
  }

 private:
  GpuBackend* gpu_;
  KernelHandle handle_;
};

}  // namespace metrale::gpu
