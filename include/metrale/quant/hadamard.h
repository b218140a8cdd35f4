// SPDX-License-Identifier: Apache-2.0
// The rotation of the turbo formats: y = H D x, with a diagonal D (signs, and what an equaliser multiplies)
// and H the normalised Walsh-Hadamard transform, block-diagonal where the dimension is no power of two. H is
// its own inverse. The order of operations is part of the formats (docs/formats/rotation.md): CPU and device
// agree bit for bit. Plain C++20, usable on host and device; no fused multiply-add.
#pragma once

#include <cstdint>

namespace metrale::quant {

// Blocks that H works on: the largest power of two that divides `head_dim`, at most 512.
[[nodiscard]] constexpr std::uint32_t hadamard_block(std::uint32_t head_dim) {
  const std::uint32_t power = head_dim & (0U - head_dim);
  return power > 512 ? 512 : power;
}

// 1 / sqrt(block), rounded to float.
[[nodiscard]] constexpr float hadamard_scale(std::uint32_t block) {
  float scale = 1.0F;
  std::uint32_t left = block;
  for (; left >= 4; left /= 4) scale *= 0.5F;
  return left == 2 ? scale * 0.707106781186547524F : scale;
}

// x = H x. Butterflies of distance 1, 2, 4, … in turn, each (a + b, a - b), then one product with the scale.
constexpr void hadamard(float* x, std::uint32_t head_dim) {
  const std::uint32_t block = hadamard_block(head_dim);
  for (std::uint32_t distance = 1; distance < block; distance *= 2) {
    for (std::uint32_t i = 0; i < head_dim; ++i) {
      if ((i & distance) != 0) continue;
      const float a = x[i];
      const float b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
  const float scale = hadamard_scale(block);
  for (std::uint32_t i = 0; i < head_dim; ++i) x[i] *= scale;
}

// The sign of dimension `dim` in the diagonal of `seed`: bit 63 of the SplitMix64 output number `dim`.
[[nodiscard]] constexpr float diagonal_sign(std::uint64_t seed, std::uint32_t dim) {
  std::uint64_t z = seed + (std::uint64_t{dim} + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  z ^= z >> 31;
  return (z >> 63) != 0 ? -1.0F : 1.0F;
}

}  // namespace metrale::quant
