// SPDX-License-Identifier: Apache-2.0
// What linear's driver (cpu.cpp) and its instances (one source per instruction set) share.
#pragma once

#include <cstddef>
#include <cstdint>

#include <metrale/quant/element_type.h>

namespace metrale::kernels::linear {

// A block of rows times all outputs. `x` holds one 32-bit value for each step: an FP32 number, or two BF16
// numbers where weights are taken as pairs.
struct Job {
  const std::uint32_t* x;  // [rows][steps]
  std::size_t x_stride;    // 32-bit values
  std::size_t rows;
  std::size_t steps;
  const std::byte* weight;  // [out_features][weight_row_bytes]
  std::size_t weight_row_bytes;
  std::size_t out_features;
  const std::byte* bias;  // may be null
  std::byte* out;
  std::size_t out_row_bytes;
  quant::ElementType out_type;
};

// Steps of a panel: it stays in the second-level cache while rows stream by.
inline constexpr std::size_t kPanelSteps = 1024;

struct Kernels {
  std::size_t lanes;         // outputs of a vector; a panel has twice as many
  std::size_t few_rows_max;  // rows that few_rows can take
  // Outputs [out_begin, out_end); out_begin is a multiple of lanes.
  void (*few_rows)(const Job& job, std::size_t out_begin, std::size_t out_end);
  // Outputs [first_out, first_out + 2 * lanes) of rows [row_begin, row_end). `panel` has room for
  // float[kPanelSteps][2 * lanes], `sums` for float[row_end - row_begin][2 * lanes].
  void (*many_rows)(const Job& job, std::size_t first_out, std::size_t row_begin, std::size_t row_end,
                    float* panel, float* sums);
};

// FP32 activations, by weight type.
struct KernelSet {
  Kernels f32;
  Kernels bf16;
  Kernels f16;
};

[[nodiscard]] const KernelSet& avx2_kernels();
[[nodiscard]] const KernelSet& avx512_kernels();
// BF16 activations and BF16 weights, two to a step.
[[nodiscard]] const Kernels& avx512_bf16_pair_kernels();

// Writes `count` activations as FP32.
void widen_row(quant::ElementType type, const std::byte* from, std::size_t count, float* to);

}  // namespace metrale::kernels::linear
