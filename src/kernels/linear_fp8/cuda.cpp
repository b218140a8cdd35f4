// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <metrale/kernels/linear_fp8.h>

#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"
#include "kernels/linear/cublaslt.h"
#include "kernels/linear_fp8/checks.h"

namespace metrale::kernels {
namespace {

class QuantizeFp8 {
 public:
  explicit QuantizeFp8(gpu::CudaKernelContext& context)
      : reset_(context.function("linear_fp8", "quantize_fp8_reset")),
        largest_(context.function("linear_fp8", "quantize_fp8_largest")),
        quantize_(context.function("linear_fp8", "quantize_fp8")) {}

  void launch(gpu::CudaLaunch& to, const QuantizeFp8Args& args) const {
    check_quantize_fp8(kQuantizeFp8.function, args);
    to.kernel(reset_, {}, args);
    if (args.max_rows != 0) to.kernel(largest_, launch_shape(args), args);
    gpu::LaunchShape shape = launch_shape(args);
    if (args.max_rows == 0) shape.grid.x = 1;  // the factor is written without rows too
    to.kernel(quantize_, shape, args);
  }

 private:
  gpu::CudaFunction reset_;
  gpu::CudaFunction largest_;
  gpu::CudaFunction quantize_;
};

}  // namespace

void register_linear_fp8(gpu::CudaKernelTable& table, const CudaKernelOptions& options) {
  table.add_module("linear_fp8", linear_fp8_images());
  table.add_host(kQuantizeFp8,
                 [](gpu::CudaKernelContext& context) { return std::make_unique<QuantizeFp8>(context); });
  table.add_host(kLinearFp8, [options](gpu::CudaKernelContext& context) {
    const cublaslt::Library library = cublaslt::open_library(options.cublaslt);
    return std::make_unique<CublasLtLinearFp8>(library, products_options(options, library, context.device()));
  });
}

}  // namespace metrale::kernels
