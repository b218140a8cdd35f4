// SPDX-License-Identifier: Apache-2.0
// linear: out[row] = weight * in[row] + bias, accumulated in FP32 along in_features in one order for every
// number of rows: a row's result never depends on the rows beside it. Weights are stored once, plain
// [out_features][in_features].
//
// On the CPU the 32-bit words of a row of weights (one FP32 element or two 16-bit ones) belong to 16 lanes,
// word i to lane i mod 16. A lane starts from zero and adds its products in the order of in_features, fused;
// lanes are then added as a tree, i with i + 8, i + 4, i + 2, i + 1, and the bias comes last. That is
// bit-equal on every processor, but for BF16 activations with BF16 weights where the processor multiplies
// BF16 itself: it adds the two products of a word in one step and takes subnormals as zero. in_stride >=
// in_features >= 1 and out_stride >= out_features; throws InvalidArgument otherwise and where there are more
// than max_rows rows.
//
// On CUDA cuBLASLt computes it where it is installed and has the product, with in_features not divided among
// blocks: for each shape, types and strides one of its algorithms, or several that add in the same order, so
// that the number of rows never shows. It takes max_rows rows whatever `rows` says: `in` has so many rows
// that may be read, and the rows of `out` beyond the step's are written too, with values that mean nothing.
// The embedded kernels compute the rest.
#pragma once

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>

namespace metrale::kernels {

struct LinearArgs {
  std::uint64_t rows;    // uint32
  std::uint64_t in;      // in_type[rows][in_features], row stride in_stride
  std::uint64_t weight;  // weight_type[out_features][in_features]
  std::uint64_t bias;    // weight_type[out_features]; 0: none
  std::uint64_t out;     // out_type[rows][out_features], row stride out_stride
  std::uint32_t max_rows;
  std::uint32_t in_features;
  std::uint32_t out_features;
  std::uint32_t in_stride;   // elements
  std::uint32_t out_stride;  // elements
  quant::ElementType in_type;
  quant::ElementType weight_type;
  quant::ElementType out_type;
  // Device memory that a library's product may use while it runs; 0 bytes: none. The CPU ignores it.
  std::uint64_t workspace = 0;
  std::uint32_t workspace_bytes = 0;
  // Rows that `in` and `out` have memory for, at least max_rows; 0: max_rows. What lies in those beyond
  // `rows` is read, and written, where that makes a product of few rows faster; it reaches no other row.
  std::uint32_t room_rows = 0;
};
static_assert(sizeof(LinearArgs) == 88);
inline constexpr gpu::KernelId<LinearArgs> kLinear{"linear", "linear"};

// As linear, but from kLinearFastRows rows on the order of addition may depend on the number of rows and on
// the libraries that are there (on the CPU oneDNN 2, where it is installed): a row is then no longer
// bit-equal in every batch. On CUDA with cuBLASLt that holds from the first row on.
inline constexpr std::uint32_t kLinearFastRows = 16;
inline constexpr gpu::KernelId<LinearArgs> kLinearFast{"linear", "linear_fast"};

[[nodiscard]] inline gpu::LaunchShape launch_shape(const LinearArgs& a) {
  return {.grid = {(a.out_features + 63) / 64, (a.max_rows + 63) / 64}, .block = {256}};
}

}  // namespace metrale::kernels
