// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <immintrin.h>

#include "kernels/linear/plan.h"

namespace metrale::kernels::linear {
namespace {

__m256 widen_eight(quant::ElementType type, const std::byte* from) {
  if (type == quant::ElementType::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if (type == quant::ElementType::kF16) return _mm256_cvtph_ps(bits);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// Sixteen numbers: those at even places, then those at odd ones.
void store_even_odd(__m256 a, __m256 b, float* even, float* odd) {
  const auto in_order = [](__m256 halves) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(halves), 0xD8));
  };
  _mm256_storeu_ps(even, in_order(_mm256_shuffle_ps(a, b, 0x88)));
  _mm256_storeu_ps(odd, in_order(_mm256_shuffle_ps(a, b, 0xDD)));
}

// Sixteen elements of a chunk, from its element `at` on.
void spread_sixteen(quant::ElementType type, const std::byte* from, std::size_t steps, std::size_t at,
                    float* chunk) {
  const __m256 a = widen_eight(type, from);
  const __m256 b = widen_eight(type, from + 8 * quant::element_bytes(type));
  if (steps == 2) return store_even_odd(a, b, chunk + at / 2, chunk + kLanes + at / 2);
  _mm256_storeu_ps(chunk, a);
  _mm256_storeu_ps(chunk + 8, b);
}

}  // namespace

void spread_row(quant::ElementType type, const std::byte* from, std::size_t count, std::size_t steps,
                float* to) {
  const std::size_t chunk = steps * kLanes;
  const std::size_t width = quant::element_bytes(type);
  for (std::size_t done = 0; done < count; done += chunk, to += chunk) {
    alignas(32) std::byte last[2 * kLanes * sizeof(float)] = {};
    const std::byte* source = from + done * width;
    if (count - done < chunk) {
      std::memcpy(last, source, (count - done) * width);
      source = last;
    }
    for (std::size_t at = 0; at < chunk; at += kLanes) {
      spread_sixteen(type, source + at * width, steps, at, to);
    }
  }
}

}  // namespace metrale::kernels::linear
