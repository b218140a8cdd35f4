// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/cuda_kernels.h>

#include "kernels/cuda_register.h"

namespace metrale::kernels {

bool has_cuda_kernels() {
  return true;
}

CudaKernelNeeds cuda_kernel_needs() {
  return {.driver_major = METRALE_NVCC_MAJOR, .compute_major = 8};
}

void register_cuda_kernels(gpu::CudaKernelTable& table, const CudaKernelOptions& options) {
  register_activation(table);
  register_attention(table);
  register_embedding(table);
  register_kv_shift(table);
  register_kv_write(table);
  register_linear(table, options);
  register_linear_fp8(table, options);
  register_logits(table);
  register_mla_attention(table);
  register_norm(table);
  register_peers(table);
  register_rope(table);
  register_rotation(table);
  register_step(table);
}

}  // namespace metrale::kernels
