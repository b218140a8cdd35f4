// SPDX-License-Identifier: Apache-2.0
// exp() of every CPU kernel, compiled once per instruction set; the same bits on all of them. Relative error
// below 1.5 units in the last place; +inf above 88.72, exactly zero below -87, NaN stays NaN.
#if defined(METRALE_KERNELS_MATH_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_MATH_EXP_INL_H_
#undef METRALE_KERNELS_MATH_EXP_INL_H_
#else
#define METRALE_KERNELS_MATH_EXP_INL_H_
#endif

#include "kernels/math/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q of degree 4 fitted to
// the least largest relative error. 2^n is applied as two factors so that n = 128 is reached.
HWY_INLINE FloatVec exp_vec(FloatVec x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto n = hn::Round(hn::Mul(x, hn::Set(d, 0x1.715476p+0F)));
  auto r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e4p-1F), x);
  r = hn::NegMulAdd(n, hn::Set(d, 0x1.7f7d1cp-20F), r);
  auto q = hn::MulAdd(hn::Set(d, 0x1.6a23dp-10F), r, hn::Set(d, 0x1.123a2p-7F));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.5558f2p-5F));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.555492p-3F));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.fffffcp-2F));
  const auto e = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), hn::Set(d, 1.0F));
  const auto whole = hn::ConvertTo(di, n);
  const auto first = hn::ShiftRight<1>(whole);
  const auto second = hn::Sub(whole, first);
  const auto bias = hn::Set(di, 127);
  const auto scale1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(first, bias)));
  const auto scale2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(second, bias)));
  auto result = hn::Mul(hn::Mul(e, scale1), scale2);
  result = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.72284F)), hn::Inf(d), result);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0F)), result);
}

// exp_vec of one number: the same bits.
HWY_INLINE float exp_one(float x) {
  return hn::GetLane(exp_vec(hn::Set(FloatTag(), x)));
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_MATH_EXP_INL_H_
