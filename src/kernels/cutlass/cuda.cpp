// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/kernels/cutlass.h>

#include "kernels/cuda_register.h"
#include "kernels/cutlass/tiles.h"
#include "kernels/embedded_cuda.h"
#include "kernels/linear_fp8/checks.h"

namespace metrale::kernels {
namespace {

constexpr std::string_view kName = "cutlass::linear_fp8";

class CutlassLinearFp8 {
 public:
  explicit CutlassLinearFp8(gpu::CudaKernelContext& context) {
    if (context.device().compute_major != 9) {
      reason_ = fmt::format("a device of compute capability {}.{} (it is written for 9.0)",
                            context.device().compute_major, context.device().compute_minor);
      return;
    }
    try {
      function_ = context.function("cutlass", "linear_fp8", cutlass_fp8::kSharedBytes);
    } catch (const InvalidArgument& error) {
      reason_ = fmt::format("the portable code path ({})", error.what());
    }
  }

  void launch(gpu::CudaLaunch& to, const LinearFp8Args& args) const {
    check_linear_fp8(kName, args);
    if (!function_) throw Unsupported(kName, reason_);
    if (args.out_type != quant::ElementType::kBf16) {
      throw Unsupported(kName, fmt::format("results in {} (it has bf16)", to_string(args.out_type)));
    }
    if (args.in % 16 != 0 || args.weight % 16 != 0) {
      throw InvalidArgument(fmt::format("{}: in {:#x} and weight {:#x} must start at multiples of 16 bytes",
                                        kName, args.in, args.weight));
    }
    if (args.max_rows == 0 || args.out_features == 0) return;
    to.kernel(*function_,
              {.grid = {ceil_div<std::uint32_t>(args.max_rows, cutlass_fp8::kTileRows),
                        ceil_div<std::uint32_t>(args.out_features, cutlass_fp8::kTileOuts)},
               .block = {cutlass_fp8::kThreads},
               .shared_bytes = cutlass_fp8::kSharedBytes},
              args);
  }

 private:
  std::optional<gpu::CudaFunction> function_;
  std::string reason_;  // why there is none
};

}  // namespace

void register_cutlass(gpu::CudaKernelTable& table) {
  table.add_module("cutlass", cutlass_images());
  table.add_host(kCutlassLinearFp8,
                 [](gpu::CudaKernelContext& context) { return std::make_unique<CutlassLinearFp8>(context); });
}

}  // namespace metrale::kernels
