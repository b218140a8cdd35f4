// SPDX-License-Identifier: Apache-2.0
// launch() resolves a kernel's name once per backend and enqueues; BoundKernel keeps what was resolved.
#pragma once

#include <cstddef>
#include <span>

#include <metrale/gpu/backend.h>
#include <metrale/gpu/kernel_id.h>
#include <metrale/gpu/op_cache.h>

namespace metrale::gpu {

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
