// SPDX-License-Identifier: Apache-2.0
// The fake CUDA driver as tests use it: where its library is, its knobs, and backends over it.
#pragma once

#include <memory>
#include <span>
#include <string>

#include <metrale/backends/cuda.h>
#include <metrale/gpu/cuda_kernel_table.h>

#include "support/fake_cuda/knobs.h"

namespace metrale::test {

// What open_cuda_host() takes.
[[nodiscard]] const std::string& fake_cuda_library();
// The library stays loaded, so what is set stays set.
[[nodiscard]] const FakeCudaKnobs& fake_cuda();
[[nodiscard]] FakeCudaLive fake_cuda_live();

// The kernels of the conformance suite; their modules report faults.
[[nodiscard]] gpu::CudaKernelTable fake_cuda_kernels();
// The same as a module from outside, with the variable foreign_offset of 4 bytes.
[[nodiscard]] std::span<const std::byte> fake_cuda_image();

[[nodiscard]] std::shared_ptr<backends::CudaHost> open_fake_host(int ordinal = 0);
// On device 0.
[[nodiscard]] std::unique_ptr<gpu::GpuBackend> open_fake_backend(
    const backends::CudaBackendOptions& options = {});

}  // namespace metrale::test
