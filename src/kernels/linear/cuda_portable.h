// SPDX-License-Identifier: Apache-2.0
// PortableLinear: linear by the embedded kernels, for any mix of types, strides and alignments. Every output
// is added in one order, whatever the number of rows and whichever kernel computes it.
#pragma once

#include <metrale/gpu/cuda_kernel_table.h>
#include <metrale/kernels/linear.h>

namespace metrale::kernels {

class PortableLinear {
 public:
  // Needs the module "linear".
  explicit PortableLinear(gpu::CudaKernelContext& context);

  // Enqueues. Throws Unsupported and InvalidArgument as the CPU body does, DeviceError.
  void launch(gpu::CudaLaunch& to, const LinearArgs& args) const;

 private:
  gpu::CudaFunction few_rows_;
  gpu::CudaFunction many_rows_;
};

}  // namespace metrale::kernels
