// SPDX-License-Identifier: Apache-2.0
// The table of a build without nvcc.
#include <metrale/kernels/cuda_kernels.h>

namespace metrale::kernels {

bool has_cuda_kernels() {
  return false;
}

CudaKernelNeeds cuda_kernel_needs() {
  return {};
}

void register_cuda_kernels(gpu::CudaKernelTable&, const CudaKernelOptions&) {}

}  // namespace metrale::kernels
