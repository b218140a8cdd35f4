// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/embedding.h>

#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"

namespace metrale::kernels {

void register_embedding(gpu::CudaKernelTable& table) {
  table.add_module("embedding", embedding_images());
  table.add(kEmbedding);
}

}  // namespace metrale::kernels
