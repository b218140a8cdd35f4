// SPDX-License-Identifier: Apache-2.0
#include "sampling/row_passes.h"

#include <array>
#include <immintrin.h>

#include <metrale/sampling/fixed_exp.h>
#include <metrale/sampling/token_order.h>

namespace metrale::sampling {
namespace {

constexpr std::size_t kLanes = 8;

__m256i broadcast(std::uint64_t value) {
  return _mm256_set1_epi64x(static_cast<long long>(value));
}

// fixed_exp from its steps on, on four 64-bit lanes. Compilers do not see that the factors have 32 bits and
// would multiply all 64.
__m256i weights_of_steps(__m128i steps) {
  const __m256i octaves = _mm256_mul_epu32(_mm256_cvtepu32_epi64(steps), broadcast(kLog2E));
  const __m256i fraction = _mm256_srli_epi64(octaves, 25);  // the upper half of a lane is not read
  const auto times_fraction = [&](__m256i value) {
    return _mm256_srli_epi64(_mm256_mul_epu32(fraction, value), 32);
  };
  __m256i sum = _mm256_setzero_si256();
  for (const std::uint32_t coefficient : power_coefficients()) {
    sum = _mm256_sub_epi64(broadcast(coefficient), times_fraction(sum));
  }
  const __m256i power = _mm256_sub_epi64(broadcast(std::uint64_t{1} << 32), times_fraction(sum));
  const __m256i doubled = _mm256_srlv_epi64(_mm256_slli_epi64(power, 9), _mm256_srli_epi64(octaves, 57));
  return _mm256_srli_epi64(_mm256_add_epi64(doubled, broadcast(1)), 1);
}

// The steps of fixed_exp for eight logits.
__m256i steps_of_logits(__m256 logits, float best, float temperature) {
  const __m256 gaps = _mm256_div_ps(_mm256_sub_ps(_mm256_set1_ps(best), logits), _mm256_set1_ps(temperature));
  const __m256i bounded = _mm256_min_epu32(_mm256_castps_si256(_mm256_add_ps(gaps, _mm256_setzero_ps())),
                                           _mm256_castps_si256(_mm256_set1_ps(kLargestGap)));
  return _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(bounded), _mm256_set1_ps(0x1p26f)));
}

}  // namespace

NonFiniteCounts load_row(std::span<const float> logits, std::span<float> row) {
  NonFiniteCounts counts;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    counts.all += static_cast<std::uint32_t>(!is_finite(logit));
    counts.minus_infinities += static_cast<std::uint32_t>(logit == kExcluded);
    row[i] = is_finite(logit) ? logit : kExcluded;
  }
  return counts;
}

std::uint64_t weigh(std::span<const float> row, float best, float temperature,
                    std::span<std::uint64_t> weights) {
  __m256i totals = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    const __m256i steps = steps_of_logits(_mm256_loadu_ps(&row[i]), best, temperature);
    const __m256i low = weights_of_steps(_mm256_castsi256_si128(steps));
    const __m256i high = weights_of_steps(_mm256_extracti128_si256(steps, 1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(&weights[i]), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(&weights[i + kLanes / 2]), high);
    totals = _mm256_add_epi64(totals, _mm256_add_epi64(low, high));
  }
  std::array<std::uint64_t, 4> parts{};
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts.data()), totals);
  std::uint64_t total = parts[0] + parts[1] + parts[2] + parts[3];
  for (; i < row.size(); ++i) {
    weights[i] = token_weight(row[i], best, temperature);
    total += weights[i];
  }
  return total;
}

}  // namespace metrale::sampling
