// SPDX-License-Identifier: Apache-2.0
// Element-wise kernels of the feed-forward block and the residual stream, computed in FP32.
#pragma once

#include <algorithm>

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>

namespace metrale::kernels {

struct GatedMulArgs {
  std::uint64_t rows;  // uint32
  std::uint64_t gate;  // type[rows][width], row stride in_stride
  std::uint64_t up;    // type[rows][width], row stride in_stride
  std::uint64_t out;   // type[rows][width], row stride out_stride
  std::uint32_t max_rows;
  std::uint32_t width;
  std::uint32_t in_stride;   // elements
  std::uint32_t out_stride;  // elements
  quant::ElementType type;
  std::uint32_t reserved;
};
static_assert(sizeof(GatedMulArgs) == 56);
// out = gate / (1 + exp(-gate)) * up
inline constexpr gpu::KernelId<GatedMulArgs> kSiluMul{"activation", "silu_mul"};
// out = gate / (1 + exp(-2u)) * up, u = sqrt(2 / pi) * (gate + 0.044715 * gate^3): GELU in its tanh form
inline constexpr gpu::KernelId<GatedMulArgs> kGeluTanhMul{"activation", "gelu_tanh_mul"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const GatedMulArgs& a) {
  return {.grid = {a.max_rows, std::max(1U, (a.width + 2047) / 2048)}, .block = {256}};
}

// accum += in
struct ResidualAddArgs {
  std::uint64_t rows;   // uint32
  std::uint64_t in;     // in_type[rows][width]
  std::uint64_t accum;  // float[rows][width]
  std::uint32_t max_rows;
  std::uint32_t width;
  quant::ElementType in_type;
  std::uint32_t reserved;
};
static_assert(sizeof(ResidualAddArgs) == 40);
inline constexpr gpu::KernelId<ResidualAddArgs> kResidualAdd{"activation", "residual_add"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const ResidualAddArgs& a) {
  return {.grid = {a.max_rows, std::max(1U, (a.width + 2047) / 2048)}, .block = {256}};
}

}  // namespace metrale::kernels
