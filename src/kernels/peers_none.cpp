// SPDX-License-Identifier: Apache-2.0
// A build without foreign kernels.
#include <metrale/kernels/cuda_kernels.h>

#include "kernels/cuda_register.h"

namespace metrale::kernels {

bool has_peer_kernels() {
  return false;
}

void register_peers(gpu::CudaKernelTable&) {}

}  // namespace metrale::kernels
