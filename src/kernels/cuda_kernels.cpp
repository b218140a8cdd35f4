// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/cuda_kernels.h>

#include "kernels/cuda_register.h"

namespace metrale::kernels {

bool has_cuda_kernels() {
  return true;
}

void register_cuda_kernels(gpu::CudaKernelTable& table, const CudaKernelOptions&) {
  register_norm(table);
}

}  // namespace metrale::kernels
