// SPDX-License-Identifier: Apache-2.0
#include "support/multiply_add_rate.h"

#include <future>
#include <immintrin.h>

#include <metrale/base/cpu_features.h>

#include "support/report.h"

namespace metrale::bench {
namespace {

constexpr std::size_t kChains = 12;
constexpr std::size_t kRounds = 4'000'000;

[[gnu::target("avx512f")]] void multiply_add_avx512() {
  __m512 acc[kChains];  // unequal, or the compiler keeps only one
  for (std::size_t i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.5F);
  for (std::size_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m512& a : acc) a = _mm512_fmadd_ps(a, factor, factor);
  }
  for (const __m512& a : acc) keep(a);
}

void multiply_add_avx2() {
  __m256 acc[kChains];
  for (std::size_t i = 0; i < kChains; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.5F);
  for (std::size_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m256& a : acc) a = _mm256_fmadd_ps(a, factor, factor);
  }
  for (const __m256& a : acc) keep(a);
}

}  // namespace

double multiply_add_rate(ThreadPool& pool, unsigned runs) {
  const bool wide = cpu_isa() != CpuIsa::kAvx2;
  const double seconds = median_seconds(runs, [&] {
    std::promise<void> done;
    pool.post([&] {
      pool.parallel_for(pool.size(), 1, [&](std::size_t, std::size_t) {
        wide ? multiply_add_avx512() : multiply_add_avx2();
      });
      done.set_value();
    });
    done.get_future().wait();
  });
  return static_cast<double>(pool.size() * kRounds * kChains * 2 * (wide ? 16 : 8)) / seconds;
}

}  // namespace metrale::bench
