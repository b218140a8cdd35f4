// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/logits.h>

#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"

namespace metrale::kernels {

void register_logits(gpu::CudaKernelTable& table) {
  table.add_module("logits", logits_images());
  table.add(kGatherRows);
  table.add(kArgmax);
}

}  // namespace metrale::kernels
