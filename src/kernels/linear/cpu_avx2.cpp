// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <immintrin.h>

#include "kernels/linear/body.h"
#include "kernels/linear/weights.h"

namespace metrale::kernels::linear {
namespace {

struct Avx2 {
  using Vec = __m256;
  using Words = __m256i;
  static constexpr std::size_t kLanes = 8;
  static constexpr std::size_t kFewRows = 4;
  static constexpr std::size_t kTileRows = 6;  // 12 sums, two weights and a broadcast fill 15 of 16 registers

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec multiply_add(Vec x, Vec w, Vec sum) { return _mm256_fmadd_ps(x, w, sum); }
  static Vec load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vec value) { _mm256_storeu_ps(to, value); }
  static Vec broadcast(const std::uint32_t* from) {
    int bits;
    std::memcpy(&bits, from, sizeof bits);
    return _mm256_castsi256_ps(_mm256_set1_epi32(bits));
  }

  static Words load_words(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  static void store_words(void* to, Words words) { _mm256_storeu_si256(static_cast<__m256i*>(to), words); }
  // The first `bytes` bytes, at most 32; the rest is zero.
  static Words load_words_partial(const void* from, std::size_t bytes) {
    alignas(32) std::byte copy[32] = {};
    std::memcpy(copy, from, bytes);
    return load_words(copy);
  }
  static Vec as_f32(Words words) { return _mm256_castsi256_ps(words); }

  static Vec bf16_low(Words words) { return as_f32(_mm256_slli_epi32(words, 16)); }
  static Vec bf16_high(Words words) {
    return as_f32(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
  static void f16_pair(Words words, Vec* steps) {
    steps[0] = _mm256_cvtph_ps(low_halves(_mm256_and_si256(words, _mm256_set1_epi32(0xFFFF))));
    steps[1] = _mm256_cvtph_ps(low_halves(_mm256_srli_epi32(words, 16)));
  }
  static Vec load_bf16(const void* from, std::size_t count) {
    return as_f32(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16bit(from, count)), 16));
  }
  static Vec load_f16(const void* from, std::size_t count) {
    return _mm256_cvtph_ps(load_16bit(from, count));
  }

  static void store_f32(void* to, Vec value, std::size_t count) {
    if (count == 8) return _mm256_storeu_ps(static_cast<float*>(to), value);
    alignas(32) float copy[8];
    _mm256_store_ps(copy, value);
    std::memcpy(to, copy, count * 4);
  }
  // Round to nearest even, NaN made quiet.
  static void store_bf16(void* to, Vec value, std::size_t count) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    store_16bit(to, low_halves(_mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16)), count);
  }
  static void store_f16(void* to, Vec value, std::size_t count) {
    store_16bit(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), count);
  }

  // words[i] lane j becomes words[j] lane i.
  [[gnu::always_inline]] static void transpose(Words* words) {
    __m256i pairs[8];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_epi32(words[i], words[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_epi32(words[i], words[i + 1]);
    }
    __m256i quads[8];  // quads[4 g + j], 128-bit lane q: word 4 q + j of rows 4 g … 4 g + 3
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; i += 4) {
      quads[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
      quads[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
      quads[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      words[j] = _mm256_permute2x128_si256(quads[j], quads[4 + j], 0x20);
      words[4 + j] = _mm256_permute2x128_si256(quads[j], quads[4 + j], 0x31);
    }
  }

 private:
  // The low halves of eight 32-bit values below 65536.
  static __m128i low_halves(__m256i values) {
    return _mm_packus_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
  }
  static __m128i load_16bit(const void* from, std::size_t count) {
    alignas(16) std::byte copy[16] = {};
    std::memcpy(copy, from, count * 2);
    return _mm_load_si128(reinterpret_cast<const __m128i*>(copy));
  }
  static void store_16bit(void* to, __m128i value, std::size_t count) {
    alignas(16) std::byte copy[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(copy), value);
    std::memcpy(to, copy, count * 2);
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
