// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/rotation.h>

#include "kernels/cuda_checked.h"
#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"
#include "kernels/rotation/args.h"

namespace metrale::kernels {

void register_rotation(gpu::CudaKernelTable& table) {
  table.add_module("rotation", rotation_images());
  add_checked<check_rotate_heads>(table, kRotateHeads);
}

}  // namespace metrale::kernels
