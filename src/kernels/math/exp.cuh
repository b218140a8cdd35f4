// SPDX-License-Identifier: Apache-2.0
// exp() with the bits of the CPU kernels: the same steps as src/kernels/math/exp-inl.h, in the same order.
#pragma once

#include <bit>
#include <cstdint>

namespace metrale::kernels::device {

[[nodiscard]] __device__ __forceinline__ float exp_exact(float x) {
  if (x > 88.72284F) return std::bit_cast<float>(0x7F800000U);
  if (x < -87.0F) return 0.0F;
  const float n = rintf(x * 0x1.715476p+0F);
  float r = fmaf(-n, 0x1.62e4p-1F, x);
  r = fmaf(-n, 0x1.7f7d1cp-20F, r);
  float q = fmaf(0x1.6a23dp-10F, r, 0x1.123a2p-7F);
  q = fmaf(q, r, 0x1.5558f2p-5F);
  q = fmaf(q, r, 0x1.555492p-3F);
  q = fmaf(q, r, 0x1.fffffcp-2F);
  const float e = fmaf(r * r, q, r) + 1.0F;
  const int whole = static_cast<int>(n);
  const int first = whole >> 1;
  const auto power = [](int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  };
  return e * power(first) * power(whole - first);
}

}  // namespace metrale::kernels::device
