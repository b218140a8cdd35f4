// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/activation.h>

#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"

namespace metrale::kernels {

void register_activation(gpu::CudaKernelTable& table) {
  table.add_module("activation", activation_images());
  table.add(kSiluMul);
  table.add(kGeluTanhMul);
  table.add(kResidualAdd);
}

}  // namespace metrale::kernels
