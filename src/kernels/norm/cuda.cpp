// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/norm.h>

#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"

namespace metrale::kernels {

void register_norm(gpu::CudaKernelTable& table) {
  table.add_module("norm", norm_images());
  table.add(kRmsNorm);
  table.add(kAddRmsNorm);
}

}  // namespace metrale::kernels
