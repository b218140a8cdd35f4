// SPDX-License-Identifier: Apache-2.0
// rms_norm: out = x / sqrt(mean(x^2) + eps) * weight, in FP32, for each of the `groups` spans of `width`
// elements that a row begins with: a whole hidden state is one group, query or key heads are many. `out` may
// be `in` where the types and strides are equal.
// add_rms_norm: accum += in, and out = rms_norm of the sums: the end of one branch of a layer and the start
// of the next, bit for bit as residual_add and rms_norm one after the other.
#pragma once

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>

namespace metrale::kernels {

struct RmsNormArgs {
  std::uint64_t rows;    // uint32
  std::uint64_t in;      // in_type[rows][groups][width], row stride in_stride
  std::uint64_t weight;  // weight_type[width], the same for every group
  std::uint64_t out;     // out_type[rows][groups][width], row stride out_stride
  std::uint32_t max_rows;
  std::uint32_t width;
  std::uint32_t in_stride;   // elements
  std::uint32_t out_stride;  // elements
  quant::ElementType in_type;
  quant::ElementType weight_type;
  quant::ElementType out_type;
  float epsilon;
  std::uint32_t groups = 1;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(RmsNormArgs) == 72);
inline constexpr gpu::KernelId<RmsNormArgs> kRmsNorm{"norm", "rms_norm"};

struct AddRmsNormArgs {
  std::uint64_t rows;    // uint32
  std::uint64_t in;      // float[rows][width]
  std::uint64_t accum;   // float[rows][width], read and written
  std::uint64_t weight;  // float[width]
  std::uint64_t out;     // out_type[rows][width], neither `in` nor `accum`
  std::uint32_t max_rows;
  std::uint32_t width;
  quant::ElementType out_type;
  float epsilon;
};
static_assert(sizeof(AddRmsNormArgs) == 56);
inline constexpr gpu::KernelId<AddRmsNormArgs> kAddRmsNorm{"norm", "add_rms_norm"};

// On a device a thread takes eight elements at a time; whole warps, at most 512 threads.
[[nodiscard]] inline std::uint32_t rms_norm_threads(std::uint32_t width) {
  const std::uint32_t threads = (width / 8 + 31) / 32 * 32;
  return threads < 32 ? 32 : threads > 512 ? 512 : threads;
}
[[nodiscard]] inline gpu::LaunchShape launch_shape(const RmsNormArgs& a) {
  return {.grid = {a.max_rows, a.groups}, .block = {rms_norm_threads(a.width)}};
}
[[nodiscard]] inline gpu::LaunchShape launch_shape(const AddRmsNormArgs& a) {
  return {.grid = {a.max_rows}, .block = {rms_norm_threads(a.width)}};
}

}  // namespace metrale::kernels
