// SPDX-License-Identifier: Apache-2.0
// Attention over levels with AVX2.
#include <immintrin.h>

#include "kernels/attention/levels.h"
#include "kernels/attention/levels_avx2_read.h"
#include "kernels/attention/levels_body.h"

namespace metrale::kernels::levels {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr std::size_t kLanes = 8;
  static constexpr std::size_t kMostRows = 4;
  static constexpr std::size_t units(std::size_t rows) { return rows <= 2 ? 2 : 1; }

  static Vec load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vec v) { _mm256_storeu_ps(to, v); }
  static Vec broadcast(const float* from) { return _mm256_broadcast_ss(from); }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static __m256i load_pairs(const std::byte* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Vec first(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static Vec second(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
  }

  // Sums of a record over four keys: of keys 0 and 2 in the lower half, of 1 and 3 in the upper one, each in
  // two parts.
  template <std::size_t R>
  static void add_record(const std::byte* levels, const std::int16_t* q, std::size_t q_stride,
                         std::size_t dims, __m256i (&sums)[R]) {
    __m256i acc[R][2];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < R; ++i) acc[i][0] = acc[i][1] = _mm256_setzero_si256();
    for (std::size_t dim = 0; dim < dims; dim += 8, levels += 64) {
      const __m256i two[2] = {_mm256_cvtepi8_epi16(load16(levels)),
                              _mm256_cvtepi8_epi16(load16(levels + 16))};
#pragma GCC unroll 4
      for (std::size_t i = 0; i < R; ++i) {
        const __m256i query = _mm256_broadcastsi128_si256(load16(q + i * q_stride + dim));
        acc[i][0] = _mm256_add_epi32(acc[i][0], _mm256_madd_epi16(two[0], query));
        acc[i][1] = _mm256_add_epi32(acc[i][1], _mm256_madd_epi16(two[1], query));
      }
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < R; ++i) sums[i] = _mm256_hadd_epi32(acc[i][0], acc[i][1]);
  }

  template <std::size_t R>
  static void score_rows(const Scores& t, std::size_t row) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const std::int16_t* q = t.queries.whole + row * t.queries.stride;
    for (std::size_t key = 0; key < t.keys; key += kOctet) {
      __m256 dots[R];
#pragma GCC unroll 4
      for (std::size_t i = 0; i < R; ++i) dots[i] = _mm256_setzero_ps();
      for (std::size_t record = 0; record * 128 < t.head_dim; ++record) {
        const std::size_t left = t.head_dim - record * 128;
        const std::byte* levels = t.levels + (key / kOctet * t.key_groups + record * 16) * 64;
        __m256i low[R];
        __m256i high[R];
        add_record<R>(levels, q + record * 128, t.queries.stride, left < 128 ? left : 128, low);
        add_record<R>(levels + 32, q + record * 128, t.queries.stride, left < 128 ? left : 128, high);
        const __m256 steps = _mm256_loadu_ps(t.steps + record * kKeyTile + key);
#pragma GCC unroll 4
        for (std::size_t i = 0; i < R; ++i) {
          __m256i dot = _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(low[i], high[i]), order);
          if (t.halves)
            dot = _mm256_add_epi32(_mm256_add_epi32(dot, dot),
                                   _mm256_set1_epi32(t.queries.sums[(row + i) * kMostRecords + record]));
          const __m256 exact = _mm256_cvtepi32_ps(dot);
          dots[i] = _mm256_fmadd_ps(exact, steps, dots[i]);
        }
      }
#pragma GCC unroll 4
      for (std::size_t i = 0; i < R; ++i) {
        _mm256_storeu_ps(t.scores + (row + i) * t.scores_stride + key,
                         _mm256_mul_ps(dots[i], _mm256_set1_ps(t.queries.factors[row + i])));
      }
    }
  }
};

}  // namespace

const KernelSet& avx2_kernels() {
  static constexpr KernelSet kSet{.few_rows = 0,
                                  .read_keys = read_keys,
                                  .score = Body<Avx2>::score,
                                  .score_few = nullptr,
                                  .read_values = read_values,
                                  .add = Body<Avx2>::add,
                                  .add_few = nullptr};
  return kSet;
}

}  // namespace metrale::kernels::levels
