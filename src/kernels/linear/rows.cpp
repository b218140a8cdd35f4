// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <immintrin.h>

#include <metrale/quant/float_convert.h>

#include "kernels/linear/plan.h"

namespace metrale::kernels::linear {
namespace {

template <class Widen, class WidenOne>
void widen(const std::byte* from, std::size_t count, float* to, Widen widen_eight, WidenOne widen_one) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
    _mm256_storeu_ps(to + i, widen_eight(bits));
  }
  for (; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof bits);
    to[i] = widen_one(bits);
  }
}

}  // namespace

void widen_row(quant::ElementType type, const std::byte* from, std::size_t count, float* to) {
  switch (type) {
    case quant::ElementType::kF32:
      std::memcpy(to, from, count * 4);
      return;
    case quant::ElementType::kBf16:
      widen(
          from, count, to,
          [](__m128i bits) {
            return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
          },
          quant::bf16_to_float);
      return;
    case quant::ElementType::kF16:
      widen(from, count, to, [](__m128i bits) { return _mm256_cvtph_ps(bits); }, quant::f16_to_float);
      return;
  }
}

}  // namespace metrale::kernels::linear
