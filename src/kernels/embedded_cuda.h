// SPDX-License-Identifier: Apache-2.0
// The embedded fat binaries of each kernel family; cmake/metrale_cuda.cmake makes the definitions.
#pragma once

#include <cstddef>

#include <metrale/gpu/cuda_kernel_table.h>

namespace metrale::kernels {

gpu::CudaModuleImages activation_images();
gpu::CudaModuleImages attention_images();
gpu::CudaModuleImages cutlass_images();
gpu::CudaModuleImages embedding_images();
gpu::CudaModuleImages flashinfer_images();
gpu::CudaModuleImages kv_shift_images();
gpu::CudaModuleImages kv_write_images();
gpu::CudaModuleImages linear_images();
gpu::CudaModuleImages linear_fp8_images();
gpu::CudaModuleImages logits_images();
gpu::CudaModuleImages mla_attention_images();
gpu::CudaModuleImages norm_images();
gpu::CudaModuleImages rope_images();
gpu::CudaModuleImages rotation_images();
gpu::CudaModuleImages step_images();

}  // namespace metrale::kernels
