// SPDX-License-Identifier: Apache-2.0
// The host bodies that compute linear layers by cuBLASLt, and by the embedded kernel what it cannot do.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <metrale/gpu/cuda_kernel_table.h>
#include <metrale/kernels/cuda_kernels.h>
#include <metrale/kernels/linear.h>
#include <metrale/kernels/linear_fp8.h>

#include "kernels/linear/cublaslt_products.h"

namespace metrale::kernels {

[[nodiscard]] cublaslt::ProductsOptions products_options(const CudaKernelOptions& options);

// Throws InvalidArgument for features and strides that contradict each other, Unsupported for a type that
// there is not.
void check_linear(std::string_view kernel, const LinearArgs& args);

// Whatever cuBLASLt does not serve goes here, on the same stream.
using LinearFallback = std::function<void(gpu::CudaLaunch&, const LinearArgs&)>;

class CublasLtLinear {
 public:
  // kFast: linear_fast.
  enum class Order { kExact, kFast };
  // The device's context is current. Throws DeviceError.
  CublasLtLinear(const cublaslt::Functions& functions, const cublaslt::ProductsOptions& options, Order order,
                 LinearFallback fallback);
  // Thread-safe. Throws DeviceError, InvalidArgument.
  void launch(gpu::CudaLaunch& to, const LinearArgs& args);

 private:
  cublaslt::Products products_;
  Order order_;
  LinearFallback fallback_;
};

class CublasLtLinearFp8 {
 public:
  // `library` without functions: every launch throws Unsupported with its reason.
  CublasLtLinearFp8(const cublaslt::Library& library, const cublaslt::ProductsOptions& options);
  // Thread-safe. Throws DeviceError, InvalidArgument, Unsupported.
  void launch(gpu::CudaLaunch& to, const LinearFp8Args& args);

 private:
  std::string reason_;
  std::optional<cublaslt::Products> products_;
};

}  // namespace metrale::kernels
