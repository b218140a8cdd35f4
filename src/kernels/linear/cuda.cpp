// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include <metrale/base/checked.h>

#include "kernels/cuda_register.h"
#include "kernels/embedded_cuda.h"
#include "kernels/linear/args.h"
#include "kernels/linear/cublaslt.h"
#include "kernels/linear/cuda_portable.h"
#include "kernels/linear/cuda_tiles.h"

namespace metrale::kernels {

using namespace linear_cuda;

PortableLinear::PortableLinear(gpu::CudaKernelContext& context)
    : few_rows_(context.function("linear", "linear_few_rows")),
      many_rows_(context.function("linear", "linear_many_rows")) {}

void PortableLinear::launch(gpu::CudaLaunch& to, const LinearArgs& args) const {
  check_linear("linear::linear", args);
  const bool few = args.max_rows <= kFewRows;
  const std::uint32_t outs = few ? kFewBlockOuts : kManyBlockOuts;
  const std::uint32_t rows = few ? kFewRows : kManyBlockRows;
  to.kernel(few ? few_rows_ : many_rows_,
            {.grid = {std::max(1U, ceil_div(args.out_features, outs)),
                      std::clamp(ceil_div(args.max_rows, rows), 1U, kMaxGridY)},
             .block = {few ? kFewThreads : kManyThreads}},
            args);
}

namespace {

// By cuBLASLt, which leaves the rest to the embedded kernels.
auto make_linear(const CudaKernelOptions& options, CublasLtLinear::Order order) {
  return [options, order](gpu::CudaKernelContext& context) {
    const cublaslt::Library library = cublaslt::open_library(options.cublaslt);
    return std::make_unique<CublasLtLinear>(
        library, products_options(options, library, context.device()), order,
        [portable = PortableLinear(context)](gpu::CudaLaunch& to, const LinearArgs& args) {
          portable.launch(to, args);
        });
  };
}

}  // namespace

void register_linear(gpu::CudaKernelTable& table, const CudaKernelOptions& options) {
  table.add_module("linear", linear_images());
  table.add_host(kLinear, make_linear(options, CublasLtLinear::Order::kExact));
  table.add_host(kLinearFast, make_linear(options, CublasLtLinear::Order::kFast));
}

}  // namespace metrale::kernels
