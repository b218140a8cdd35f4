// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/norm.h>

#include "kernels/math/device.cuh"

using namespace metrale::kernels;
using namespace metrale::kernels::device;

// A block for each group of a row.
extern "C" __global__ void rms_norm(const __grid_constant__ RmsNormArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint64_t group = std::uint64_t{blockIdx.y} * a.width;
  const std::uint64_t in = std::uint64_t{blockIdx.x} * a.in_stride + group;
  const std::uint64_t out = std::uint64_t{blockIdx.x} * a.out_stride + group;
  float sum = 0;
  for (std::uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    const float x = load(a.in_type, a.in, in + i);
    sum = fmaf(x, x, sum);
  }
  const float mean = block_sum(sum) / static_cast<float>(a.width);
  const float inverse = 1.0F / sqrtf(mean + a.epsilon);
  for (std::uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
    const float x = load(a.in_type, a.in, in + i);
    store(a.out_type, a.out, out + i, x * inverse * load(a.weight_type, a.weight, i));
  }
}
