// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/activation.h>

#include "kernels/math/exp.cuh"
#include "kernels/math/pieces.cuh"

using namespace metrale::kernels;
using namespace metrale::kernels::device;

namespace {

__device__ __forceinline__ float silu(float g) {
  return g / (1.0F + exp_exact(-g));
}

// The constants are -2 sqrt(2 / pi) and its product with 0.044715.
__device__ __forceinline__ float gelu_tanh(float g) {
  const float inner = fmaf(g * g, -0.0713548162726F, -1.5957691216057F);
  return g / (1.0F + exp_exact(g * inner));
}

template <class Gate>
__device__ __forceinline__ void gated_mul(const GatedMulArgs& a, const Gate& apply) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint64_t in = std::uint64_t{blockIdx.x} * a.in_stride;
  const std::uint64_t gate = element_address(a.type, a.gate, in);
  const std::uint64_t up = element_address(a.type, a.up, in);
  const std::uint64_t out = element_address(a.type, a.out, std::uint64_t{blockIdx.x} * a.out_stride);
  std::uint64_t done = 0;
  if (aligned16(gate | up | out)) {
    const std::uint32_t pieces = a.width / kPiece;
    for (std::uint64_t i = row_thread(); i < pieces; i += row_threads()) {
      const std::uint64_t at = i * kPiece * metrale::quant::element_bytes(a.type);
      float g[kPiece];
      float u[kPiece];
      load_piece(a.type, gate + at, g);
      load_piece(a.type, up + at, u);
#pragma unroll
      for (std::uint32_t k = 0; k < kPiece; ++k) g[k] = apply(g[k]) * u[k];
      store_piece(a.type, out + at, g);
    }
    done = std::uint64_t{pieces} * kPiece;
  }
  for (std::uint64_t i = done + row_thread(); i < a.width; i += row_threads()) {
    store(a.type, out, i, apply(load(a.type, gate, i)) * load(a.type, up, i));
  }
}

}  // namespace

extern "C" __global__ void silu_mul(const __grid_constant__ GatedMulArgs a) {
  gated_mul(a, [](float g) { return silu(g); });
}

extern "C" __global__ void gelu_tanh_mul(const __grid_constant__ GatedMulArgs a) {
  gated_mul(a, [](float g) { return gelu_tanh(g); });
}

extern "C" __global__ void residual_add(const __grid_constant__ ResidualAddArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint64_t row = std::uint64_t{blockIdx.x} * a.width;
  const std::uint64_t in = element_address(a.in_type, a.in, row);
  const std::uint64_t accum = element_address(ElementType::kF32, a.accum, row);
  std::uint64_t done = 0;
  if (aligned16(in | accum)) {
    const std::uint32_t pieces = a.width / kPiece;
    for (std::uint64_t i = row_thread(); i < pieces; i += row_threads()) {
      float x[kPiece];
      float sum[kPiece];
      load_piece(a.in_type, element_address(a.in_type, in, i * kPiece), x);
      load_piece(ElementType::kF32, accum + i * kPiece * sizeof(float), sum);
#pragma unroll
      for (std::uint32_t k = 0; k < kPiece; ++k) sum[k] += x[k];
      store_piece(ElementType::kF32, accum + i * kPiece * sizeof(float), sum);
    }
    done = std::uint64_t{pieces} * kPiece;
  }
  for (std::uint64_t i = done + row_thread(); i < a.width; i += row_threads()) {
    pointer<float>(accum)[i] += load(a.in_type, in, i);
  }
}
