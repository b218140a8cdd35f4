// SPDX-License-Identifier: Apache-2.0
// The end of a row of linear: the sums of the lanes, the bias, the rounding.
#pragma once

#include <cstddef>
#include <cstring>
#include <immintrin.h>

#include <metrale/quant/element_type.h>

#include "kernels/linear/plan.h"

namespace metrale::kernels::linear {

// The sums of the lanes of four outputs, of which four lanes are left: lane i with lane i + 2, then i + 1.
[[nodiscard]] inline __m128 sum_lanes(const float* sums) {
  const __m128 a = _mm_loadu_ps(sums);
  const __m128 b = _mm_loadu_ps(sums + 4);
  const __m128 c = _mm_loadu_ps(sums + 8);
  const __m128 d = _mm_loadu_ps(sums + 12);
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));  // two lanes of a and b in turn
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
  return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

[[nodiscard]] inline __m128 load_four(quant::ElementType type, const std::byte* from, std::size_t count) {
  alignas(16) std::byte copy[16] = {};
  std::memcpy(copy, from, count * quant::element_bytes(type));
  const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(copy));
  switch (type) {
    case quant::ElementType::kF32:
      break;
    case quant::ElementType::kBf16:
      return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(bits), 16));
    case quant::ElementType::kF16:
      return _mm_cvtph_ps(bits);
  }
  return _mm_castsi128_ps(bits);
}

// Round to nearest even, NaN made quiet.
[[nodiscard]] inline __m128i round_bf16(__m128 value) {
  const __m128i bits = _mm_castps_si128(value);
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  const __m128i rounded = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7FFF)), odd);
  const __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x00400000));
  const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(value, value));
  const __m128i wide = _mm_srli_epi32(_mm_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(wide, wide);
}

// The first `count` of four results.
inline void store_four(quant::ElementType type, __m128 value, std::size_t count, std::byte* to) {
  __m128i bits = _mm_castps_si128(value);
  if (type == quant::ElementType::kBf16) bits = round_bf16(value);
  if (type == quant::ElementType::kF16) {
    bits = _mm_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  if (count != kPanelOuts) {
    alignas(16) std::byte copy[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(copy), bits);
    std::memcpy(to, copy, count * quant::element_bytes(type));
  } else if (type == quant::ElementType::kF32) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits);
  } else {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bits);
  }
}

}  // namespace metrale::kernels::linear
