// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "kernels/linear/body.h"
#include "kernels/linear/weights.h"

namespace metrale::kernels::linear {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr std::size_t kWidth = 8;
  static constexpr std::size_t kMostRows =
      2;  // 8 sums, four weights and a row's values fill 13 of 16 registers

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec multiply_add(Vec x, Vec w, Vec sum) { return _mm256_fmadd_ps(x, w, sum); }
  static Vec load(const float* from) { return _mm256_loadu_ps(from); }

  // Four lanes of one output: lane i with lane i + 8, then i + 4.
  static void fold(const Vec (&sum)[2], float* to) {
    const Vec eight = _mm256_add_ps(sum[0], sum[1]);
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
  }
  // The same of four outputs.
  static void fold_panel(const Vec (&sums)[4][2], float* to) {
    for (std::size_t c = 0; c < 4; ++c) fold(sums[c], to + c * 4);
  }

  static __m256i load_words(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static Vec as_f32(__m256i words) { return _mm256_castsi256_ps(words); }
  static Vec bf16_low(__m256i words) { return as_f32(_mm256_slli_epi32(words, 16)); }
  static Vec bf16_high(__m256i words) {
    return as_f32(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
  static void f16_pair(__m256i words, Vec* steps) {
    steps[0] = _mm256_cvtph_ps(low_halves(_mm256_and_si256(words, _mm256_set1_epi32(0xFFFF))));
    steps[1] = _mm256_cvtph_ps(low_halves(_mm256_srli_epi32(words, 16)));
  }

 private:
  // The low halves of eight 32-bit values below 65536.
  static __m128i low_halves(__m256i values) {
    return _mm_packus_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  }
};

}  // namespace

const KernelSet& avx2_kernels() {
  static constexpr KernelSet kSet{.f32 = Body<Avx2, F32Weights<Avx2>>::kernels(),
                                  .bf16 = Body<Avx2, Bf16Weights<Avx2>>::kernels(),
                                  .f16 = Body<Avx2, F16Weights<Avx2>>::kernels()};
  return kSet;
}

}  // namespace metrale::kernels::linear
