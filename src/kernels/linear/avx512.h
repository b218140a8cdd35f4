// SPDX-License-Identifier: Apache-2.0
// Avx512: the 16-lane vectors of linear. Local to each source that includes it, which is compiled for
// AVX-512.
#pragma once

#include <cstddef>
#include <immintrin.h>

namespace metrale::kernels::linear {
namespace {

struct Avx512 {
  using Vec = __m512;
  static constexpr std::size_t kWidth = 16;
  static constexpr std::size_t kMostRows =
      6;  // 24 sums, four weights and a row's values fill 29 of 32 registers

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec multiply_add(Vec x, Vec w, Vec sum) { return _mm512_fmadd_ps(x, w, sum); }
  static Vec load(const float* from) { return _mm512_loadu_ps(from); }

  // Four lanes of one output: lane i with lane i + 8, then i + 4.
  static void fold(const Vec (&sum)[1], float* to) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sum[0]), _mm512_extractf32x8_ps(sum[0], 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
  }
  // The same of four outputs.
  static void fold_panel(const Vec (&sums)[4][1], float* to) {
    const auto eights = [](Vec a, Vec b) {
      return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    };
    const Vec ab = eights(sums[0][0], sums[1][0]);
    const Vec cd = eights(sums[2][0], sums[3][0]);
    _mm512_storeu_ps(to,
                     _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD)));
  }

  static __m512i load_words(const void* from) { return _mm512_loadu_si512(from); }
  static Vec as_f32(__m512i words) { return _mm512_castsi512_ps(words); }
  static Vec bf16_low(__m512i words) { return as_f32(_mm512_slli_epi32(words, 16)); }
  static Vec bf16_high(__m512i words) {
    return as_f32(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
  static void f16_pair(__m512i words, Vec* steps) {
    steps[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
    steps[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)));
  }
};

}  // namespace
}  // namespace metrale::kernels::linear
