// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/step.h>

#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"

namespace metrale::kernels {

void register_step(gpu::CudaKernelTable& table) {
  table.add_module("step", step_images());
  table.add(kApplyTableDeltas);
}

}  // namespace metrale::kernels
