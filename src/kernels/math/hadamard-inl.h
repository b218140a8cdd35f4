// SPDX-License-Identifier: Apache-2.0
// The rotation of quant/hadamard.h in vectors, compiled once per instruction set: the same operations on the
// same pairs, and so the same bits.
#if defined(METRALE_KERNELS_MATH_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_MATH_HADAMARD_INL_H_
#undef METRALE_KERNELS_MATH_HADAMARD_INL_H_
#else
#define METRALE_KERNELS_MATH_HADAMARD_INL_H_
#endif

#include <metrale/quant/hadamard.h>

#include "kernels/math/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// Lane i of the result is lane i ^ kDistance of v.
template <std::size_t kDistance>
HWY_INLINE FloatVec exchange(FloatVec v) {
  if constexpr (kDistance == 1) {
    return hn::Shuffle2301(v);
  } else if constexpr (kDistance == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (kDistance == 4) {
    return hn::SwapAdjacentBlocks(v);
  } else {
    return hn::ConcatLowerUpper(FloatTag(), v, v);
  }
}

// Butterflies within a vector: (a + b) in the lower lane of a pair, (a - b) in the upper one.
template <std::size_t kDistance>
HWY_INLINE FloatVec butterfly(FloatVec v) {
  const BitsTag du;
  const auto upper = hn::TestBit(hn::Iota(du, 0), hn::Set(du, kDistance));
  const auto sign = hn::IfThenElseZero(upper, hn::Set(du, 0x80000000U));
  return hn::Add(exchange<kDistance>(v), hn::BitCast(FloatTag(), hn::Xor(hn::BitCast(du, v), sign)));
}

// x = H D (x - mean); null pointers are zeros and ones. `head_dim` is a multiple of 16.
HWY_INLINE void rotate_vec(float* x, std::size_t head_dim, const float* diagonal, const float* mean) {
  for (std::size_t i = 0; i < head_dim; i += kVec) {
    FloatVec v = load_vec(x + i);
    if (mean != nullptr) v = hn::Sub(v, load_vec(mean + i));
    if (diagonal != nullptr) v = hn::Mul(v, load_vec(diagonal + i));
    v = butterfly<4>(butterfly<2>(butterfly<1>(v)));
    if constexpr (kVec == 16) v = butterfly<8>(v);
    store_vec(v, x + i);
  }
  const std::size_t block = quant::hadamard_block(static_cast<std::uint32_t>(head_dim));
  for (std::size_t distance = kVec; distance < block; distance *= 2) {
    for (std::size_t first = 0; first < head_dim; first += 2 * distance) {
      for (std::size_t i = first; i < first + distance; i += kVec) {
        const FloatVec a = load_vec(x + i);
        const FloatVec b = load_vec(x + i + distance);
        store_vec(hn::Add(a, b), x + i);
        store_vec(hn::Sub(a, b), x + i + distance);
      }
    }
  }
  const FloatVec scale = hn::Set(FloatTag(), quant::hadamard_scale(static_cast<std::uint32_t>(block)));
  for (std::size_t i = 0; i < head_dim; i += kVec) store_vec(hn::Mul(load_vec(x + i), scale), x + i);
}

// x = (H x) / D + mean: takes back what rotate_vec does.
HWY_INLINE void unrotate_vec(float* x, std::size_t head_dim, const float* diagonal, const float* mean) {
  rotate_vec(x, head_dim, nullptr, nullptr);
  for (std::size_t i = 0; i < head_dim; i += kVec) {
    FloatVec v = load_vec(x + i);
    if (diagonal != nullptr) v = hn::Div(v, load_vec(diagonal + i));
    if (mean != nullptr) v = hn::Add(v, load_vec(mean + i));
    store_vec(v, x + i);
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_MATH_HADAMARD_INL_H_
