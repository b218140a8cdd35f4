// SPDX-License-Identifier: Apache-2.0
// One registration function per kernel family, each defined in <family>/cpu.cpp.
#pragma once

#include <metrale/gpu/cpu_kernel_table.h>

namespace metrale::kernels {

void register_activation(gpu::CpuKernelTable& table);
void register_attention(gpu::CpuKernelTable& table);
void register_embedding(gpu::CpuKernelTable& table);
void register_kv_shift(gpu::CpuKernelTable& table);
void register_kv_write(gpu::CpuKernelTable& table);
void register_linear(gpu::CpuKernelTable& table);
void register_linear_fp8(gpu::CpuKernelTable& table);
void register_logits(gpu::CpuKernelTable& table);
void register_mla_attention(gpu::CpuKernelTable& table);
void register_norm(gpu::CpuKernelTable& table);
void register_rope(gpu::CpuKernelTable& table);
void register_rotation(gpu::CpuKernelTable& table);
void register_step(gpu::CpuKernelTable& table);

}  // namespace metrale::kernels
