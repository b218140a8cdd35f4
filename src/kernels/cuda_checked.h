// SPDX-License-Identifier: Apache-2.0
// A device symbol whose arguments are checked on the host first: what the CPU body refuses before it looks at
// any data.
#pragma once

#include <memory>

#include <metrale/gpu/cuda_kernel_table.h>

namespace metrale::kernels {

// For CudaKernelTable::add_host. `Check` is `void check(const Args&)` and throws what is wrong.
template <auto Check, class Args>
class CheckedKernel {
 public:
  CheckedKernel(gpu::CudaKernelContext& context, const gpu::KernelId<Args>& id)
      : function_(context.function(id.module, id.function)) {}

  void launch(gpu::CudaLaunch& to, const Args& args) const {
    Check(args);
    to.kernel(function_, launch_shape(args), args);
  }

 private:
  gpu::CudaFunction function_;
};

template <auto Check, class Args>
void add_checked(gpu::CudaKernelTable& table, const gpu::KernelId<Args>& id) {
  table.add_host(id, [id](gpu::CudaKernelContext& context) {
    return std::make_unique<CheckedKernel<Check, Args>>(context, id);
  });
}

}  // namespace metrale::kernels
