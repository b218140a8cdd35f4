// SPDX-License-Identifier: Apache-2.0
// The device that a program of CUDA tests runs on, from its command line: --device=cuda:N and
// --path=best|portable, --cublaslt=LIBRARY (and --golden=DIR, --model=DIR where the source tree is
// elsewhere). support/cuda_main.cpp ends the program, with exit code 77, where there is none.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <metrale/gpu/backend.h>
#include <metrale/runtime/runtime.h>

namespace metrale::test {

struct CudaTestDevice {
  std::string device = "cuda:0";
  int ordinal = 0;
  backends::CudaCodePath path = backends::CudaCodePath::kBest;
  std::optional<std::string> cublaslt;  // as BackendOptions
};
// Set by main().
[[nodiscard]] CudaTestDevice& cuda_test_device();

// What the product opens for that device.
[[nodiscard]] runtime::BackendOptions cuda_options();
[[nodiscard]] std::unique_ptr<gpu::GpuBackend> open_cuda();

}  // namespace metrale::test
