// SPDX-License-Identifier: Apache-2.0
// Attention over levels with AVX2.
#include <immintrin.h>
#include <type_traits>

#include "kernels/attention/levels.h"
#include "kernels/attention/levels_avx2_read.h"
#include "kernels/attention/levels_avx2_values.h"
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

  using Integers = __m256i;
  static Integers no_integers() { return _mm256_setzero_si256(); }
  static Integers broadcast_pair(const std::int16_t* from) {
    return _mm256_set1_epi32(load_as<std::int32_t>(from));
  }
  static Integers add_products(Integers sum, Integers a, Integers b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }

  // A cell is two groups, of dimensions `dim` and `dim` + 32.
  template <class Body>
  static void for_cells(std::size_t dims, const Body& body) {
    for (std::size_t first = 0; first < dims; first += 64) {
      for (std::size_t dim = first; dim < dims && dim < first + 32; dim += 8) {
        body(std::integral_constant<std::size_t, 2>(), dim);
      }
    }
  }

  // Adds integers times `factor` to the values that `dims` leaves of a cell.
  static void finish_integers(const Integers (&acc)[2], float factor, std::size_t dims, float* values) {
    const auto add = [factor](__m256i whole, float* to) {
      store(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(factor), load(to)));
    };
    add(_mm256_permute2x128_si256(acc[0], acc[1], 0x20), values);
    if (dims > 32) add(_mm256_permute2x128_si256(acc[0], acc[1], 0x31), values + 32);
  }

  // What read_integers() wrote.
  struct ReadIntegers {
    const std::byte* levels;
    std::size_t stride;
    explicit ReadIntegers(const WeightedIntegers& t)
        : levels(t.levels + t.first * 4), stride(t.value_stride * 4) {}
    [[gnu::always_inline]] void load(std::size_t pair, std::size_t dim, __m256i (&out)[2]) const {
      const std::byte* from = levels + pair * stride + dim / 64 * 256 + dim % 64 * 8;
      out[0] = load_pairs(from);
      out[1] = load_pairs(from + 32);
    }
  };

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
                                  .read_integers = read_integers,
                                  .add_integers = Body<Avx2>::add_integers,
                                  .add_integers_few = nullptr,
                                  .read_values = read_values,
                                  .add = Body<Avx2>::add,
                                  .add_few = nullptr};
  return kSet;
}

}  // namespace metrale::kernels::levels
