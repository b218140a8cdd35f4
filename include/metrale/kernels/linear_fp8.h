// SPDX-License-Identifier: Apache-2.0
// linear_fp8: linear layers in E4M3, weights and activations each with one FP32 factor for the whole matrix.
//
// quantize_fp8 takes the factor of activations from the step's own rows: a row's result depends on the rows
// beside it, so these kernels are no part of an exact engine.
#pragma once

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>
#include <metrale/quant/float_convert.h>

namespace metrale::kernels {

// out = round(in / factor) to E4M3, where factor is fp8_factor() of the largest finite magnitude of the rows
// that exist. What is larger saturates, infinity too; NaN stays NaN. A matrix of weights is quantized by the
// same kernel.
struct QuantizeFp8Args {
  std::uint64_t rows;    // uint32
  std::uint64_t in;      // in_type[rows][width], row stride in_stride
  std::uint64_t out;     // e4m3[rows][width]
  std::uint64_t factor;  // float[2]: the factor, then the magnitude that it comes from
  std::uint32_t max_rows;
  std::uint32_t width;
  std::uint32_t in_stride;  // elements, at least width
  quant::ElementType in_type;
};
static_assert(sizeof(QuantizeFp8Args) == 48);
inline constexpr gpu::KernelId<QuantizeFp8Args> kQuantizeFp8{"linear_fp8", "quantize_fp8"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const QuantizeFp8Args& a) {
  return {.grid = {a.max_rows}, .block = {256}};
}

// The factor with which `largest` becomes the largest E4M3 value; a normal number, 1 for 0.
[[nodiscard]] constexpr float fp8_factor(float largest) {
  if (!(largest > 0.0F)) return 1.0F;
  const float factor = largest / quant::kE4m3Largest;
  return factor < 0x1p-126F ? 0x1p-126F : factor;
}

// out = (weight * in) * (in_factor * weight_factor), summed in FP32: on the CPU along in_features in 16 lanes
// as linear does, then times the product of the factors, then rounded. On CUDA cuBLASLt computes it, for
// max_rows rows whatever `rows` says. Throws Unsupported unless both features are multiples of
// kLinearFp8Multiple; on CUDA also without cuBLASLt and below compute capability 8.9.
struct LinearFp8Args {
  std::uint64_t rows;           // uint32
  std::uint64_t in;             // e4m3[rows][in_features]
  std::uint64_t in_factor;      // float
  std::uint64_t weight;         // e4m3[out_features][in_features]
  std::uint64_t weight_factor;  // float
  std::uint64_t out;            // out_type[rows][out_features], row stride out_stride
  std::uint64_t workspace;      // as in LinearArgs
  std::uint32_t max_rows;
  std::uint32_t in_features;
  std::uint32_t out_features;
  std::uint32_t out_stride;  // elements, at least out_features
  quant::ElementType out_type;
  std::uint32_t workspace_bytes;
};
static_assert(sizeof(LinearFp8Args) == 80);
inline constexpr std::uint32_t kLinearFp8Multiple = 16;
inline constexpr gpu::KernelId<LinearFp8Args> kLinearFp8{"linear_fp8", "linear_fp8"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const LinearFp8Args& a) {
  return {.grid = {(a.out_features + 63) / 64, (a.max_rows + 63) / 64}, .block = {256}};
}

}  // namespace metrale::kernels
