// SPDX-License-Identifier: Apache-2.0
#include "cuda/support/devices.h"

#include "cuda/support/device_run.h"

namespace metrale::test {

CudaTestDevice& cuda_test_device() {
  static CudaTestDevice chosen;
  return chosen;
}

runtime::BackendOptions cuda_options() {
  runtime::BackendOptions options;
  options.device = cuda_test_device().device;
  options.cuda_path = cuda_test_device().path;
  options.cublaslt = cuda_test_device().cublaslt;
  return options;
}

std::unique_ptr<gpu::GpuBackend> open_cuda() {
  return runtime::open_backend(cuda_options());
}

}  // namespace metrale::test

namespace metrale::kernels {

gpu::GpuBackend& cpu_backend() {
  static const std::unique_ptr<gpu::GpuBackend> gpu = runtime::open_backend({.device = "cpu"});
  return *gpu;
}

gpu::GpuBackend& cuda_backend() {
  static const std::unique_ptr<gpu::GpuBackend> gpu = test::open_cuda();
  return *gpu;
}

}  // namespace metrale::kernels
