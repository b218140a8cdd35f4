// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/cpu_kernels.h>

#include "kernels/register.h"

namespace metrale::kernels {

void register_cpu_kernels(gpu::CpuKernelTable& table) {
  register_activation(table);
  register_attention(table);
  register_embedding(table);
  register_kv_shift(table);
  register_kv_write(table);
  register_linear(table);
  register_linear_fp8(table);
  register_logits(table);
  register_mla_attention(table);
  register_norm(table);
  register_rope(table);
  register_rotation(table);
  register_step(table);
}

}  // namespace metrale::kernels
