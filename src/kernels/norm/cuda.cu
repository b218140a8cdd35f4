// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/norm.h>

#include "kernels/math/pieces.cuh"

using namespace metrale::kernels;
using namespace metrale::kernels::device;

namespace {

constexpr std::uint32_t kHeld = 4;  // pieces of a thread that stay in registers

// One span that is normalised, and how its elements come and go.
struct Span {
  std::uint32_t width;
  float epsilon;
  ElementType in_type;
  ElementType weight_type;
  ElementType out_type;
  std::uint64_t in;
  std::uint64_t weight;
  std::uint64_t out;
};

struct AsItIs {
  __device__ __forceinline__ void piece(const Span& s, std::uint32_t at, float (&x)[kPiece]) const {
    load_piece(s.in_type, element_address(s.in_type, s.in, at), x);
  }
  __device__ __forceinline__ float element(const Span& s, std::uint32_t at) const {
    return load(s.in_type, s.in, at);
  }
};

// `in` is FP32 and takes the sums.
struct WithBranch {
  std::uint64_t branch;  // float[width]

  __device__ __forceinline__ void piece(const Span& s, std::uint32_t at, float (&x)[kPiece]) const {
    float sum[kPiece];
    load_piece(ElementType::kF32, branch + std::uint64_t{at} * sizeof(float), sum);
    load_piece(ElementType::kF32, s.in + std::uint64_t{at} * sizeof(float), x);
#pragma unroll
    for (std::uint32_t k = 0; k < kPiece; ++k) x[k] += sum[k];
    store_piece(ElementType::kF32, s.in + std::uint64_t{at} * sizeof(float), x);
  }
  __device__ __forceinline__ float element(const Span& s, std::uint32_t at) const {
    return pointer<float>(s.in)[at] += pointer<const float>(branch)[at];
  }
};

__device__ __forceinline__ float inverse_rms(const Span& s, float sum_of_squares) {
  return 1.0F / sqrtf(block_sum(sum_of_squares) / static_cast<float>(s.width) + s.epsilon);
}

// Each element is read once: all of a thread's loads are under way before the first is used.
template <class Read>
__device__ __forceinline__ void norm_pieces(const Span& s, const Read& read) {
  const std::uint32_t pieces = s.width / kPiece;
  float x[kHeld][kPiece];
  float sum = 0;
#pragma unroll
  for (std::uint32_t h = 0; h < kHeld; ++h) {
    const std::uint32_t piece = threadIdx.x + h * blockDim.x;
    if (piece < pieces) read.piece(s, piece * kPiece, x[h]);
  }
#pragma unroll
  for (std::uint32_t h = 0; h < kHeld; ++h) {
    if (threadIdx.x + h * blockDim.x >= pieces) continue;
#pragma unroll
    for (const float v : x[h]) sum = fmaf(v, v, sum);
  }
  const float inverse = inverse_rms(s, sum);
#pragma unroll
  for (std::uint32_t h = 0; h < kHeld; ++h) {
    const std::uint32_t piece = threadIdx.x + h * blockDim.x;
    if (piece >= pieces) continue;
    float w[kPiece];
    load_piece(s.weight_type, element_address(s.weight_type, s.weight, piece * kPiece), w);
#pragma unroll
    for (std::uint32_t k = 0; k < kPiece; ++k) w[k] = x[h][k] * inverse * w[k];
    store_piece(s.out_type, element_address(s.out_type, s.out, piece * kPiece), w);
  }
}

template <class Read>
__device__ __forceinline__ void norm_elements(const Span& s, const Read& read) {
  float sum = 0;
  for (std::uint32_t i = threadIdx.x; i < s.width; i += blockDim.x) {
    const float x = read.element(s, i);
    sum = fmaf(x, x, sum);
  }
  const float inverse = inverse_rms(s, sum);
  for (std::uint32_t i = threadIdx.x; i < s.width; i += blockDim.x) {
    const float x = load(s.in_type, s.in, i);
    store(s.out_type, s.out, i, x * inverse * load(s.weight_type, s.weight, i));
  }
}

// `aligned` is the same for every row, whose order of addition it decides.
template <class Read>
__device__ __forceinline__ void norm_span(const Span& s, bool aligned, const Read& read) {
  if (aligned && s.width % kPiece == 0 && s.width / kPiece <= kHeld * blockDim.x) {
    norm_pieces(s, read);
  } else {
    norm_elements(s, read);
  }
}

}  // namespace

// A block for each group of a row.
extern "C" __global__ void rms_norm(const __grid_constant__ RmsNormArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint64_t first = std::uint64_t{blockIdx.y} * a.width;
  const Span span{
      a.width,    a.epsilon,
      a.in_type,  a.weight_type,
      a.out_type, element_address(a.in_type, a.in, std::uint64_t{blockIdx.x} * a.in_stride + first),
      a.weight,   element_address(a.out_type, a.out, std::uint64_t{blockIdx.x} * a.out_stride + first)};
  const std::uint64_t row_bytes = element_address(a.in_type, 0, a.in_stride);
  const std::uint64_t group_bytes = element_address(a.in_type, 0, a.width);
  const std::uint64_t out_row_bytes = element_address(a.out_type, 0, a.out_stride);
  norm_span(span, aligned16(a.in | a.out | a.weight | row_bytes | out_row_bytes | group_bytes), AsItIs{});
}

// A block a row.
extern "C" __global__ void add_rms_norm(const __grid_constant__ AddRmsNormArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * a.width;
  const Span span{a.width,           a.epsilon,
                  ElementType::kF32, ElementType::kF32,
                  a.out_type,        a.accum + first * sizeof(float),
                  a.weight,          element_address(a.out_type, a.out, first)};
  norm_span(span, aligned16(a.in | a.accum | a.out | a.weight), WithBranch{a.in + first * sizeof(float)});
}
