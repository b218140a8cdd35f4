// SPDX-License-Identifier: Apache-2.0
// Every CUDA kernel body, for the composition root to hand to the CUDA backend.
#pragma once

#include <cstdint>
#include <string>

#include <metrale/gpu/cuda_kernel_table.h>

namespace metrale::kernels {

struct CudaKernelOptions {
  // The library that computes linear layers, found at run time; empty: the embedded kernels do.
  std::string cublaslt = "libcublasLt.so.13";
  // How its algorithm for an exact layer is chosen: ranked for so many rows, and the one with this number
  // (from 0; the last where there are fewer) of those that add in one order for any rows. Every layer's list
  // is in the debug log. For measurements; the default is what is meant to be used.
  std::uint32_t linear_reference_rows = 64;
  std::uint32_t linear_candidate = 0;
};

// False for a build without nvcc: such a build has no device code.
[[nodiscard]] bool has_cuda_kernels();
// Whether the build has the foreign kernels too: those of flashinfer.h and cutlass.h.
[[nodiscard]] bool has_peer_kernels();
// What the device code asks of a machine: CUDA's major version of the driver (that of the compiler that made
// it), and the compute capability. 0 where !has_cuda_kernels().
struct CudaKernelNeeds {
  int driver_major = 0;
  int compute_major = 0;
};
[[nodiscard]] CudaKernelNeeds cuda_kernel_needs();
// Adds a body for every KernelId under include/metrale/kernels/ (the foreign ones where
// has_peer_kernels()); nothing where !has_cuda_kernels().
void register_cuda_kernels(gpu::CudaKernelTable& table, const CudaKernelOptions& options = {});

}  // namespace metrale::kernels
