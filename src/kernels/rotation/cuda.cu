// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/rotation.h>
#include <metrale/quant/hadamard.h>

#include "kernels/math/device.cuh"

using namespace metrale;
using namespace metrale::kernels;
using namespace metrale::kernels::device;

namespace {

constexpr std::uint32_t kMostParts = quant::kKvMaxHeadDim / 32;

// Lane l holds elements l, l + 32, …: distances below 32 are between lanes, the others within a lane.
__device__ __forceinline__ void hadamard_warp(float (&x)[kMostParts], std::uint32_t head_dim) {
  const std::uint32_t lane = threadIdx.x;
  const std::uint32_t block = quant::hadamard_block(head_dim);
  for (std::uint32_t distance = 1; distance < 32 && distance < block; distance *= 2) {
#pragma unroll
    for (std::uint32_t p = 0; p < kMostParts; ++p) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, x[p], distance);
      x[p] = (lane & distance) != 0 ? other - x[p] : x[p] + other;
    }
  }
#pragma unroll
  for (std::uint32_t parts = 1; parts < kMostParts; parts *= 2) {
    if (parts * 32 >= block) break;
#pragma unroll
    for (std::uint32_t p = 0; p < kMostParts; ++p) {
      if ((p & parts) != 0) continue;
      const float a = x[p];
      const float b = x[p + parts];
      x[p] = a + b;
      x[p + parts] = a - b;
    }
  }
  const float scale = quant::hadamard_scale(block);
#pragma unroll
  for (float& v : x) v *= scale;
}

}  // namespace

// A warp takes a head.
extern "C" __global__ void rotate_heads(const __grid_constant__ RotateHeadsArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint32_t head = blockIdx.y * blockDim.y + threadIdx.y;
  if (head >= a.num_heads) return;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * a.stride + std::uint64_t{head} * a.head_dim;
  const auto* diagonal =
      pointer<const float>(a.diagonal) + std::uint64_t{head / (a.num_heads / a.num_kv_heads)} * a.head_dim;
  float x[kMostParts];
#pragma unroll
  for (std::uint32_t p = 0; p < kMostParts; ++p) {
    const std::uint32_t i = p * 32 + threadIdx.x;
    x[p] = i < a.head_dim ? load(a.type, a.data, first + i) : 0.0F;
    if (a.diagonal != 0 && a.inverse == 0 && i < a.head_dim) x[p] *= diagonal[i];
  }
  hadamard_warp(x, a.head_dim);
#pragma unroll
  for (std::uint32_t p = 0; p < kMostParts; ++p) {
    const std::uint32_t i = p * 32 + threadIdx.x;
    if (i >= a.head_dim) continue;
    if (a.diagonal != 0 && a.inverse != 0) x[p] *= diagonal[i];
    store(a.type, a.data, first + i, x[p]);
  }
}
