// SPDX-License-Identifier: Apache-2.0
// Avx512: the 16-lane vectors of linear. Local to each source that includes it, which is compiled for
// AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace metrale::kernels::linear {
namespace {

struct Avx512 {
  using Vec = __m512;
  using Words = __m512i;
  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kFewRows = 8;
  static constexpr std::size_t kTileRows =
      14;  // 28 sums, two weights and a broadcast fill 31 of 32 registers

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec multiply_add(Vec x, Vec w, Vec sum) { return _mm512_fmadd_ps(x, w, sum); }
  static Vec load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vec value) { _mm512_storeu_ps(to, value); }
  static Vec broadcast(const std::uint32_t* from) {
    int bits;
    std::memcpy(&bits, from, sizeof bits);
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
  }

  static Words load_words(const void* from) { return _mm512_loadu_si512(from); }
  static void store_words(void* to, Words words) { _mm512_storeu_si512(to, words); }
  // The first `bytes` bytes, at most 64; the rest is zero.
  static Words load_words_partial(const void* from, std::size_t bytes) {
    return _mm512_maskz_loadu_epi8(bytes >= 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1, from);
  }
  static Vec as_f32(Words words) { return _mm512_castsi512_ps(words); }

  static Vec bf16_low(Words words) { return as_f32(_mm512_slli_epi32(words, 16)); }
  static Vec bf16_high(Words words) {
    return as_f32(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
  static void f16_pair(Words words, Vec* steps) {
    steps[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
    steps[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)));
  }
  static Vec load_bf16(const void* from, std::size_t count) {
    return as_f32(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16bit(from, count)), 16));
  }
  static Vec load_f16(const void* from, std::size_t count) {
    return _mm512_cvtph_ps(load_16bit(from, count));
  }

  static void store_f32(void* to, Vec value, std::size_t count) {
    _mm512_mask_storeu_ps(to, lane_mask(count), value);
  }
  // Round to nearest even, subnormals kept: the hardware conversion flushes them.
  static void store_bf16(void* to, Vec value, std::size_t count) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
    store_16bit(to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)), count);
  }
  static void store_f16(void* to, Vec value, std::size_t count) {
    store_16bit(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), count);
  }

  // words[i] lane j becomes words[j] lane i.
  [[gnu::always_inline]] static void transpose(Words* words) {
    __m512i pairs[16];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; i += 2) {
      pairs[i] = _mm512_unpacklo_epi32(words[i], words[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi32(words[i], words[i + 1]);
    }
    __m512i quads[16];  // quads[4 g + j], 128-bit lane q: word 4 q + j of rows 4 g … 4 g + 3
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; i += 4) {
      quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
      quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
      quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      const __m512i even_low = _mm512_shuffle_i32x4(quads[j], quads[4 + j], 0x88);
      const __m512i odd_low = _mm512_shuffle_i32x4(quads[j], quads[4 + j], 0xDD);
      const __m512i even_high = _mm512_shuffle_i32x4(quads[8 + j], quads[12 + j], 0x88);
      const __m512i odd_high = _mm512_shuffle_i32x4(quads[8 + j], quads[12 + j], 0xDD);
      words[j] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
      words[4 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
      words[8 + j] = _mm512_shuffle_i32x4(even_low, even_high, 0xDD);
      words[12 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD);
    }
  }

 private:
  static __mmask16 lane_mask(std::size_t count) { return static_cast<__mmask16>((1U << count) - 1); }
  static __m256i load_16bit(const void* from, std::size_t count) {
    return _mm256_maskz_loadu_epi16(lane_mask(count), from);
  }
  static void store_16bit(void* to, __m256i value, std::size_t count) {
    _mm256_mask_storeu_epi16(to, lane_mask(count), value);
  }
};

}  // namespace
}  // namespace metrale::kernels::linear
