// SPDX-License-Identifier: Apache-2.0
// The conformance suite's kernels as a CUDA table, and the device that tests share.
#pragma once

#include <memory>
#include <span>

#include <metrale/backends/cuda.h>
#include <metrale/gpu/cuda_kernel_table.h>

namespace metrale::test {

[[nodiscard]] std::shared_ptr<backends::CudaHost> cuda_host();
[[nodiscard]] gpu::CudaKernelTable cuda_test_kernels();
// The same kernels as a module from outside.
[[nodiscard]] std::span<const std::byte> cuda_test_image();

}  // namespace metrale::test
