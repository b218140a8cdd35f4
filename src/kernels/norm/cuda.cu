// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/norm.h>

#include "kernels/math/pieces.cuh"

using namespace metrale::kernels;
using namespace metrale::kernels::device;

namespace {

constexpr std::uint32_t kHeld = 4;  // pieces of a thread that stay in registers

// One group of a row.
struct Group {
  std::uint64_t in;
  std::uint64_t out;
};

__device__ __forceinline__ float inverse_rms(const RmsNormArgs& a, float sum_of_squares) {
  return 1.0F / sqrtf(block_sum(sum_of_squares) / static_cast<float>(a.width) + a.epsilon);
}

// Each element is read once: all of a thread's loads are under way before the first is used.
__device__ __forceinline__ void norm_pieces(const RmsNormArgs& a, const Group& group) {
  const std::uint32_t pieces = a.width / kPiece;
  float x[kHeld][kPiece];
  float sum = 0;
#pragma unroll
  for (std::uint32_t h = 0; h < kHeld; ++h) {
    const std::uint32_t piece = threadIdx.x + h * blockDim.x;
    if (piece < pieces) load_piece(a.in_type, element_address(a.in_type, group.in, piece * kPiece), x[h]);
  }
#pragma unroll
  for (std::uint32_t h = 0; h < kHeld; ++h) {
    if (threadIdx.x + h * blockDim.x >= pieces) continue;
#pragma unroll
    for (const float v : x[h]) sum = fmaf(v, v, sum);
  }
  const float inverse = inverse_rms(a, sum);
#pragma unroll
  for (std::uint32_t h = 0; h < kHeld; ++h) {
    const std::uint32_t piece = threadIdx.x + h * blockDim.x;
    if (piece >= pieces) continue;
    float w[kPiece];
    load_piece(a.weight_type, element_address(a.weight_type, a.weight, piece * kPiece), w);
#pragma unroll
    for (std::uint32_t k = 0; k < kPiece; ++k) w[k] = x[h][k] * inverse * w[k];
    store_piece(a.out_type, element_address(a.out_type, group.out, piece * kPiece), w);
  }
}

__device__ __forceinline__ void norm_elements(const RmsNormArgs& a, const Group& group) {
  float sum = 0;
  for (std::uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    const float x = load(a.in_type, group.in, i);
    sum = fmaf(x, x, sum);
  }
  const float inverse = inverse_rms(a, sum);
  for (std::uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    const float x = load(a.in_type, group.in, i);
    store(a.out_type, group.out, i, x * inverse * load(a.weight_type, a.weight, i));
  }
}

}  // namespace

// A block for each group of a row.
extern "C" __global__ void rms_norm(const __grid_constant__ RmsNormArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint64_t first = std::uint64_t{blockIdx.y} * a.width;
  const Group group{element_address(a.in_type, a.in, std::uint64_t{blockIdx.x} * a.in_stride + first),
                    element_address(a.out_type, a.out, std::uint64_t{blockIdx.x} * a.out_stride + first)};
  // The same for every row, whose order of addition it decides.
  const std::uint64_t row_bytes = element_address(a.in_type, 0, a.in_stride);
  const std::uint64_t group_bytes = element_address(a.in_type, 0, a.width);
  const std::uint64_t out_row_bytes = element_address(a.out_type, 0, a.out_stride);
  const bool in_pieces = a.width % kPiece == 0 && a.width / kPiece <= kHeld * blockDim.x &&
                         aligned16(a.in | a.out | a.weight | row_bytes | out_row_bytes | group_bytes);
  if (in_pieces) {
    norm_pieces(a, group);
  } else {
    norm_elements(a, group);
  }
}
