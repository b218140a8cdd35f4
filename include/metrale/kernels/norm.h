// SPDX-License-Identifier: Apache-2.0
// rms_norm: out = x / sqrt(mean(x^2) + eps) * weight, row by row, in FP32.
#pragma once

#include <metrale/gpu/kernel.h>
#include <metrale/quant/element_type.h>

namespace metrale::kernels {

struct RmsNormArgs {
  std::uint64_t rows;    // uint32
  std::uint64_t in;      // in_type[rows][width], row stride in_stride
  std::uint64_t weight;  // weight_type[width]
  std::uint64_t out;     // out_type[rows][width], row stride out_stride
  std::uint32_t max_rows;
  std::uint32_t width;
  std::uint32_t in_stride;   // elements
  std::uint32_t out_stride;  // elements
  quant::ElementType in_type;
  quant::ElementType weight_type;
  quant::ElementType out_type;
  float epsilon;
};
static_assert(sizeof(RmsNormArgs) == 64);
inline constexpr gpu::KernelId<RmsNormArgs> kRmsNorm{"norm", "rms_norm"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const RmsNormArgs& a) {
  return {.grid = {a.max_rows}, .block = {256}};
}

}  // namespace metrale::kernels
