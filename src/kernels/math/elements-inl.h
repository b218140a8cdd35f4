// SPDX-License-Identifier: Apache-2.0
// Vector code shared by the CPU kernels, compiled once per instruction set: rows of any element type to and
// from float, and sums in the one order that every kernel uses (lane = index modulo 16, then a fixed tree),
// so that results do not depend on the vector length.
#if defined(METRALE_KERNELS_MATH_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_MATH_ELEMENTS_INL_H_
#undef METRALE_KERNELS_MATH_ELEMENTS_INL_H_
#else
#define METRALE_KERNELS_MATH_ELEMENTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <hwy/highway.h>

#include <metrale/quant/element_type.h>

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
inline constexpr std::size_t kVec = hn::MaxLanes(FloatTag());  // floats in a vector: 8 or 16
inline constexpr std::size_t kLanes = 16;                      // lanes of the summation order
inline constexpr std::size_t kParts = kLanes / kVec;           // vectors that make up the lanes

HWY_INLINE FloatVec load_vec(const float* src) {
  return hn::LoadU(FloatTag(), src);
}
HWY_INLINE void store_vec(FloatVec v, float* dst) {
  hn::StoreU(v, FloatTag(), dst);
}

HWY_INLINE FloatVec load_vec(const hwy::bfloat16_t* src) {
  return hn::PromoteTo(FloatTag(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, FloatTag>(), src));
}
HWY_INLINE FloatVec load_vec(const hwy::float16_t* src) {
  return hn::PromoteTo(FloatTag(), hn::LoadU(hn::Rebind<hwy::float16_t, FloatTag>(), src));
}

// As quant::float_to_bf16: ties to even, NaN stays a quiet NaN with its upper bits.
HWY_INLINE void store_vec(FloatVec v, hwy::bfloat16_t* dst) {
  const BitsTag du;
  const auto bits = hn::BitCast(du, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFU)), odd));
  const auto nan = hn::Or(upper, hn::Set(du, 0x0040U));
  const auto wide = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), nan, rounded);
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  const auto half = hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<FloatTag>(), wide));
  hn::StoreU(half, d16, reinterpret_cast<std::uint16_t*>(dst));
}

// As quant::float_to_f16: every NaN becomes the quiet NaN of its sign.
HWY_INLINE void store_vec(FloatVec v, hwy::float16_t* dst) {
  const BitsTag du;
  const auto sign = hn::And(hn::BitCast(du, v), hn::Set(du, 0x80000000U));
  const auto nan = hn::BitCast(FloatTag(), hn::Or(sign, hn::Set(du, 0x7FC00000U)));
  const hn::Rebind<hwy::float16_t, FloatTag> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::IfThenElse(hn::IsNaN(v), nan, v)), d16, dst);
}

// dst[i] = src[i] for i < count, and zeros up to the next multiple of 16.
template <class T>
HWY_INLINE void widen_as(const T* src, std::size_t count, float* dst) {
  std::size_t i = 0;
  for (; i + kVec <= count; i += kVec) store_vec(load_vec(src + i), dst + i);
  const std::size_t padded = (count + kLanes - 1) / kLanes * kLanes;
  if (i == padded) return;
  alignas(64) T tail[kLanes] = {};
  std::memcpy(tail, src + i, (count - i) * sizeof(T));
  for (std::size_t at = 0; i < padded; i += kVec, at += kVec) store_vec(load_vec(tail + at), dst + i);
}

inline void widen(quant::ElementType type, const void* src, std::size_t count, float* dst) {
  switch (type) {
    case quant::ElementType::kF32:
      return widen_as(static_cast<const float*>(src), count, dst);
    case quant::ElementType::kBf16:
      return widen_as(static_cast<const hwy::bfloat16_t*>(src), count, dst);
    case quant::ElementType::kF16:
      return widen_as(static_cast<const hwy::float16_t*>(src), count, dst);
  }
}

// dst[i] = src[i] rounded to nearest even, for i < count. `src` is readable up to the next multiple of 16.
template <class T>
HWY_INLINE void narrow_as(const float* src, std::size_t count, T* dst) {
  std::size_t i = 0;
  for (; i + kVec <= count; i += kVec) store_vec(load_vec(src + i), dst + i);
  if (i == count) return;
  alignas(64) T tail[kVec];
  store_vec(load_vec(src + i), tail);
  std::memcpy(dst + i, tail, (count - i) * sizeof(T));
}

inline void narrow(quant::ElementType type, const float* src, std::size_t count, void* dst) {
  switch (type) {
    case quant::ElementType::kF32:
      return narrow_as(src, count, static_cast<float*>(dst));
    case quant::ElementType::kBf16:
      return narrow_as(src, count, static_cast<hwy::bfloat16_t*>(dst));
    case quant::ElementType::kF16:
      return narrow_as(src, count, static_cast<hwy::float16_t*>(dst));
  }
}

// 16 accumulators in one or two vectors.
struct Lanes16 {
  FloatVec part[kParts];
};

HWY_INLINE Lanes16 set_lanes(float value) {
  Lanes16 lanes;
#pragma GCC unroll 2
  for (std::size_t k = 0; k < kParts; ++k) lanes.part[k] = hn::Set(FloatTag(), value);
  return lanes;
}

HWY_INLINE void store_lanes(const Lanes16& lanes, float* dst) {
#pragma GCC unroll 2
  for (std::size_t k = 0; k < kParts; ++k) store_vec(lanes.part[k], dst + k * kVec);
}

// Tree: i with i + 8, then + 4, + 2, + 1.
HWY_INLINE float sum_lanes(const Lanes16& lanes) {
  alignas(64) float s[kLanes];
  store_lanes(lanes, s);
  for (std::size_t step = kLanes / 2; step != 0; step /= 2) {
    for (std::size_t i = 0; i < step; ++i) s[i] += s[i + step];
  }
  return s[0];
}

HWY_INLINE float max_lanes(const Lanes16& lanes) {
  alignas(64) float s[kLanes];
  store_lanes(lanes, s);
  for (std::size_t step = kLanes / 2; step != 0; step /= 2) {
    for (std::size_t i = 0; i < step; ++i) s[i] = s[i] < s[i + step] ? s[i + step] : s[i];
  }
  return s[0];
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_MATH_ELEMENTS_INL_H_
