// SPDX-License-Identifier: Apache-2.0
// The foreign kernels of a build with METRALE_PEERS.
#include <metrale/kernels/cuda_kernels.h>

#include "kernels/cuda_register.h"

namespace metrale::kernels {

bool has_peer_kernels() {
  return true;
}

void register_peers(gpu::CudaKernelTable& table) {
  register_cutlass(table);
  register_flashinfer(table);
}

}  // namespace metrale::kernels
