// SPDX-License-Identifier: Apache-2.0
// The host bodies that compute linear layers by cuBLASLt, and by the embedded kernel what it cannot do.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <metrale/gpu/cuda_kernel_table.h>
#include <metrale/kernels/cuda_kernels.h>
#include <metrale/kernels/linear.h>
#include <metrale/kernels/linear_fp8.h>

#include "kernels/linear/cublaslt_products.h"

namespace metrale::kernels {

[[nodiscard]] cublaslt::ProductsOptions products_options(const CudaKernelOptions& options,
                                                         const cublaslt::Library& library,
                                                         const gpu::CudaDeviceFacts& device);

// Whatever cuBLASLt does not serve goes here, on the same stream.
using LinearFallback = std::function<void(gpu::CudaLaunch&, const LinearArgs&)>;

class CublasLtLinear {
 public:
  // kFast: linear_fast.
  enum class Order { kExact, kFast };
  // The device's context is current. Where the library is not there or does not start, the log says so and
  // every launch goes to `fallback`.
  CublasLtLinear(const cublaslt::Library& library, const cublaslt::ProductsOptions& options, Order order,
                 LinearFallback fallback);
  // Thread-safe. Throws DeviceError, InvalidArgument.
  void launch(gpu::CudaLaunch& to, const LinearArgs& args);
  void abandon() noexcept {
    if (products_) products_->abandon();
  }

 private:
  std::unique_ptr<cublaslt::Products> products_;  // null: not there
  Order order_;
  LinearFallback fallback_;
};

class CublasLtLinearFp8 {
 public:
  // Where the library is not there or does not start, every launch throws Unsupported with the reason.
  CublasLtLinearFp8(const cublaslt::Library& library, const cublaslt::ProductsOptions& options);
  // Thread-safe. Throws DeviceError, InvalidArgument, Unsupported.
  void launch(gpu::CudaLaunch& to, const LinearFp8Args& args);
  void abandon() noexcept {
    if (products_) products_->abandon();
  }

 private:
  std::string reason_;                            // why not
  std::unique_ptr<cublaslt::Products> products_;  // null: not there
};

}  // namespace metrale::kernels
