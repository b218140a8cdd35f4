// SPDX-License-Identifier: Apache-2.0
#include "support/read_rate.h"

#include <chrono>
#include <future>
#include <sys/mman.h>

#include <metrale/base/cpu_features.h>

#include "support/report.h"

namespace metrale::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{5} << 28;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kUnit = 256;  // bytes that a round of the sums takes

[[gnu::target("avx512f")]] float sum_avx512(const std::byte* from, std::size_t bytes) {
  using Vec [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
  Vec sums[4] = {};
  for (std::size_t i = 0; i < bytes; i += kUnit) {
    for (std::size_t j = 0; j < 4; ++j) sums[j] += *reinterpret_cast<const Vec*>(from + i + j * 64);
  }
  const Vec all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return all[0] + all[5];
}

float sum_avx2(const std::byte* from, std::size_t bytes) {
  using Vec [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;
  Vec sums[8] = {};
  for (std::size_t i = 0; i < bytes; i += kUnit) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += *reinterpret_cast<const Vec*>(from + i + j * 32);
  }
  const Vec all = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  return all[0] + all[5];
}

}  // namespace

ReadRate::ReadRate(ThreadPool& pool) : pool_(pool), buffer_(kBytes, kHugePage) {
  ::madvise(buffer_.data(), kBytes, MADV_HUGEPAGE);
  for (std::byte& value : buffer_.span()) value = std::byte{0};
}

double ReadRate::measure() {
  const std::size_t threads = pool_.size();
  const std::size_t part = kBytes / threads / kUnit * kUnit;
  std::promise<void> done;
  const auto start = std::chrono::steady_clock::now();
  pool_.post([&] {
    pool_.parallel_for(threads, 1, [&](std::size_t thread, std::size_t) {
      const std::byte* from = buffer_.data() + thread * part;
      keep(cpu_isa() == CpuIsa::kAvx2 ? sum_avx2(from, part) : sum_avx512(from, part));
    });
    done.set_value();
  });
  done.get_future().wait();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(part * threads) / seconds / 1e9;
}

}  // namespace metrale::bench
