// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/large_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// GCC's sanitizers watch memcpy, and not these stores; clang's watch both.
#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define METRALE_STREAMING_STORES 1
#include <emmintrin.h>
#endif

namespace metrale::backends::cpu {

#if defined(METRALE_STREAMING_STORES)

void copy_past_caches(std::byte* dst, const std::byte* src, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(dst) % kLine) % kLine);
  std::memcpy(dst, src, head);
  const std::size_t lines = (bytes - head) / kLine;
  auto* to = reinterpret_cast<__m128i*>(dst + head);
  const auto* from = reinterpret_cast<const __m128i*>(src + head);
  for (std::size_t i = 0; i < lines; ++i, to += 4, from += 4) {
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  // Stores past the caches become visible in no order of their own.
  _mm_sfence();
  const std::size_t done = head + lines * kLine;
  std::memcpy(dst + done, src + done, bytes - done);
}

#else

void copy_past_caches(std::byte* dst, const std::byte* src, std::size_t bytes) {
  std::memcpy(dst, src, bytes);
}

#endif

}  // namespace metrale::backends::cpu
