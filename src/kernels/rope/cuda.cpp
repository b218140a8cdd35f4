// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/rope.h>

#include "kernels/cuda_checked.h"
#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"
#include "kernels/rope/args.h"

namespace metrale::kernels {

void register_rope(gpu::CudaKernelTable& table) {
  table.add_module("rope", rope_images());
  add_checked<check_rope_table>(table, kRopeTable);
  add_checked<check_rope>(table, kRope);
}

}  // namespace metrale::kernels
