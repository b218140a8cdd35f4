// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/linear_fp8.h>

#include "kernels/math/device.cuh"

using namespace metrale::kernels;
using namespace metrale::kernels::device;

// The factor's second word holds the bits of the largest magnitude: those of floats that are not negative
// have the order of the numbers.
extern "C" __global__ void quantize_fp8_reset(const __grid_constant__ QuantizeFp8Args a) {
  pointer<unsigned int>(a.factor)[1] = 0;
}

// A block for each row.
extern "C" __global__ void quantize_fp8_largest(const __grid_constant__ QuantizeFp8Args a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint64_t in = std::uint64_t{blockIdx.x} * a.in_stride;
  float largest = 0;
  for (std::uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    const float magnitude = fabsf(load(a.in_type, a.in, in + i));
    if (magnitude < INFINITY) largest = fmaxf(largest, magnitude);
  }
  const unsigned int bits = __reduce_max_sync(kFullWarp, __float_as_uint(largest));
  if (threadIdx.x % kWarp == 0) atomicMax(&pointer<unsigned int>(a.factor)[1], bits);
}

extern "C" __global__ void quantize_fp8(const __grid_constant__ QuantizeFp8Args a) {
  const std::uint32_t rows = read_rows(a.rows, a.max_rows);
  const float factor = fp8_factor(pointer<const float>(a.factor)[1]);
  if (blockIdx.x == 0 && threadIdx.x == 0) pointer<float>(a.factor)[0] = factor;
  if (blockIdx.x >= rows) return;
  const std::uint64_t in = std::uint64_t{blockIdx.x} * a.in_stride;
  auto* const out = pointer<std::uint8_t>(a.out) + std::uint64_t{blockIdx.x} * a.width;
  for (std::uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    out[i] = metrale::quant::float_to_e4m3(load(a.in_type, a.in, in + i) / factor);
  }
}
