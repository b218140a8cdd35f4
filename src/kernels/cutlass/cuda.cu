// SPDX-License-Identifier: Apache-2.0
// CUTLASS's E4M3 product for Hopper: asynchronous copies and warp-group matrix instructions. Its parameters
// are plain data, so each block makes them from LinearFp8Args.
#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/default_epilogue.hpp>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include <metrale/kernels/cutlass.h>

#include "kernels/cutlass/tiles.h"
#include "kernels/math/device.cuh"

using namespace metrale::kernels;
using namespace metrale::kernels::device;
using namespace metrale::kernels::cutlass_fp8;

namespace {

using Element = cutlass::float_e4m3_t;
using Output = cutlass::bfloat16_t;
using TileShape = cute::Shape<cute::Int<kTileRows>, cute::Int<kTileOuts>, cute::Int<kTileIns>>;
using ClusterShape = cute::Shape<cute::_1, cute::_1, cute::_1>;
constexpr int kAlignment = 16;  // elements, and bytes
using Mainloop =
    cutlass::gemm::collective::CollectiveBuilder<cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element,
                                                 cutlass::layout::RowMajor, kAlignment, Element,
                                                 cutlass::layout::ColumnMajor, kAlignment, float, TileShape,
                                                 ClusterShape, cutlass::gemm::collective::StageCount<kStages>,
                                                 cutlass::gemm::KernelCpAsyncWarpSpecialized>::CollectiveOp;
using RowMajor = cutlass::detail::TagToStrideC_t<cutlass::layout::RowMajor>;
using Epilogue = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
    cutlass::epilogue::collective::DefaultEpilogue<
        Output, RowMajor, RowMajor, cutlass::epilogue::thread::LinearCombination<Output, 1, float, float>,
        cutlass::epilogue::NoSmemWarpSpecialized>>;
using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;
static_assert(Kernel::SharedStorageSize <= kSharedBytes);
static_assert(Kernel::MaxThreadsPerBlock == kThreads);

}  // namespace

// A block for each tile of the result: grid (rows, outputs).
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    linear_fp8(const __grid_constant__ LinearFp8Args a) {
  extern __shared__ __align__(128) char shared[];
  const std::uint32_t rows = read_rows(a.rows, a.max_rows);
  if (blockIdx.x * kTileRows >= rows) return;
  const auto ins = static_cast<std::int64_t>(a.in_features);
  const auto out_stride = static_cast<std::int64_t>(a.out_stride);
  const float factor = *pointer<const float>(a.in_factor) * *pointer<const float>(a.weight_factor);
  const Kernel::Params params{.mode = cutlass::gemm::GemmUniversalMode::kGemm,
                              .problem_shape = {static_cast<int>(rows), static_cast<int>(a.out_features),
                                                static_cast<int>(a.in_features), 1},
                              .mainloop = {.ptr_A = pointer<const Element>(a.in),
                                           .dA = {ins, {}, 0},
                                           .ptr_B = pointer<const Element>(a.weight),
                                           .dB = {ins, {}, 0}},
                              .epilogue = {.thread = {factor, 0.0F},
                                           .ptr_C = nullptr,
                                           .dC = {out_stride, {}, 0},
                                           .ptr_D = pointer<Output>(a.out),
                                           .dD = {out_stride, {}, 0}}};
  Kernel()(params, shared);
}
