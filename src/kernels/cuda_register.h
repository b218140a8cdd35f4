// SPDX-License-Identifier: Apache-2.0
// One registration function per kernel family, each defined in <family>/cuda.cpp.
#pragma once

#include <metrale/gpu/cuda_kernel_table.h>
#include <metrale/kernels/cuda_kernels.h>

namespace metrale::kernels {

void register_activation(gpu::CudaKernelTable& table);
void register_attention(gpu::CudaKernelTable& table);
void register_cutlass(gpu::CudaKernelTable& table);
void register_embedding(gpu::CudaKernelTable& table);
void register_flashinfer(gpu::CudaKernelTable& table);
void register_kv_shift(gpu::CudaKernelTable& table);
void register_kv_write(gpu::CudaKernelTable& table);
void register_linear(gpu::CudaKernelTable& table, const CudaKernelOptions& options);
void register_linear_fp8(gpu::CudaKernelTable& table, const CudaKernelOptions& options);
void register_logits(gpu::CudaKernelTable& table);
void register_mla_attention(gpu::CudaKernelTable& table);
void register_norm(gpu::CudaKernelTable& table);
// Those that the build has; peers.cpp or peers_none.cpp.
void register_peers(gpu::CudaKernelTable& table);
void register_rope(gpu::CudaKernelTable& table);
void register_rotation(gpu::CudaKernelTable& table);
void register_step(gpu::CudaKernelTable& table);

}  // namespace metrale::kernels
