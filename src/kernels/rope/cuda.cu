// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/rope.h>

#include "kernels/math/pieces.cuh"

using namespace metrale::kernels;
using namespace metrale::kernels::device;

namespace {

// The base of the powers that give the frequencies at a position past the model's own range.
__device__ double dynamic_base(const RopeTableArgs& a, std::uint32_t position) {
  const double stretch =
      static_cast<double>(a.dynamic_factor) * (static_cast<double>(position) + 1) / a.dynamic_from -
      (static_cast<double>(a.dynamic_factor) - 1);
  return a.dynamic_theta * pow(stretch, a.half_dims / (a.half_dims - 1.0));
}

__device__ __forceinline__ void turn(float& x, float& y, float cosine, float sine) {
  const float turned = fmaf(-y, sine, x * cosine);
  y = fmaf(x, sine, y * cosine);
  x = turned;
}

// Eight pairs, all of whose arrays are aligned.
__device__ __forceinline__ void turn_piece(const RopeArgs& a, std::uint64_t first, std::uint64_t second,
                                           std::uint64_t cosines, std::uint64_t sines) {
  float x[kPiece];
  float y[kPiece];
  float c[kPiece];
  float s[kPiece];
  load_piece(a.type, first, x);
  load_piece(a.type, second, y);
  load_piece(ElementType::kF32, cosines, c);
  load_piece(ElementType::kF32, sines, s);
#pragma unroll
  for (std::uint32_t k = 0; k < kPiece; ++k) turn(x[k], y[k], c[k], s[k]);
  store_piece(a.type, first, x);
  store_piece(a.type, second, y);
}

}  // namespace

extern "C" __global__ void rope_table(const __grid_constant__ RopeTableArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint32_t position = pointer<const std::uint32_t>(a.positions)[blockIdx.x];
  const bool dynamic = a.dynamic_from != 0 && position >= a.dynamic_from;
  const double base = dynamic ? dynamic_base(a, position) : 0;
  float* cosines = pointer<float>(a.table) + std::uint64_t{blockIdx.x} * 2 * a.half_dims;
  for (std::uint32_t i = threadIdx.x; i < a.half_dims; i += blockDim.x) {
    const double exponent = static_cast<double>(i) / static_cast<double>(a.half_dims);
    const float frequency =
        dynamic ? static_cast<float>(1 / pow(base, exponent)) : pointer<const float>(a.inv_freq)[i];
    // Rounded to float first: part of the contract.
    const double angle = static_cast<float>(position) * frequency;
    cosines[i] = a.factor * static_cast<float>(cos(angle));
    cosines[std::uint64_t{a.half_dims} + i] = a.factor * static_cast<float>(sin(angle));
  }
}

// The pieces of a row's heads are divided among the row's threads.
extern "C" __global__ void rope(const __grid_constant__ RopeArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint32_t half = a.rotary_dim / 2;
  const std::uint64_t row = element_address(a.type, a.data, std::uint64_t{blockIdx.x} * a.stride);
  const std::uint64_t cosines =
      element_address(ElementType::kF32, a.table, std::uint64_t{blockIdx.x} * 2 * half);
  const std::uint64_t sines = element_address(ElementType::kF32, cosines, half);
  const std::uint64_t head_bytes = element_address(a.type, 0, a.head_dim);
  const std::uint32_t pieces = (half + kPiece - 1) / kPiece;
  const bool whole = half % kPiece == 0 && aligned16(row | head_bytes | cosines);
  const std::uint64_t items = std::uint64_t{a.num_heads} * pieces;
  for (std::uint64_t item = row_thread(); item < items; item += row_threads()) {
    const auto begin = static_cast<std::uint32_t>(item % pieces) * kPiece;
    const std::uint64_t first = row + item / pieces * head_bytes;
    if (whole) {
      turn_piece(a, element_address(a.type, first, begin), element_address(a.type, first, begin + half),
                 element_address(ElementType::kF32, cosines, begin),
                 element_address(ElementType::kF32, sines, begin));
      continue;
    }
    for (std::uint32_t i = begin; i < min(begin + kPiece, half); ++i) {
      float x = load(a.type, first, i);
      float y = load(a.type, first, std::uint64_t{half} + i);
      turn(x, y, load(ElementType::kF32, cosines, i), load(ElementType::kF32, sines, i));
      store(a.type, first, i, x);
      store(a.type, first, std::uint64_t{half} + i, y);
    }
  }
}
