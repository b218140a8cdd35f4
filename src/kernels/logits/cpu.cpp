// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/logits.h>

#include "kernels/host_args.h"
#include "kernels/register.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/logits/cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/math/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// The largest finite value, or -infinity where none is finite.
float max_finite(const float* x, std::size_t count) {
  const FloatTag d;
  const FloatVec lowest = hn::Neg(hn::Inf(d));
  FloatVec best = lowest;
  std::size_t i = 0;
  for (; i + kVec <= count; i += kVec) {
    const FloatVec v = load_vec(x + i);
    best = hn::Max(best, hn::IfThenElse(hn::IsFinite(v), v, lowest));
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, best));
  for (; i < count; ++i) {
    if (std::isfinite(x[i]) && x[i] > result) result = x[i];
  }
  return result;
}

// Index of the first element equal to `value`; `count` where there is none.
std::size_t find_equal(const float* x, std::size_t count, float value) {
  const FloatTag d;
  std::size_t i = 0;
  for (; i + kVec <= count; i += kVec) {
    const std::intptr_t at = hn::FindFirstTrue(d, hn::Eq(load_vec(x + i), hn::Set(d, value)));
    if (at >= 0) return i + static_cast<std::size_t>(at);
  }
  while (i < count && x[i] != value) ++i;
  return i;
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {
namespace {

HWY_EXPORT(max_finite);
HWY_EXPORT(find_equal);

void gather_rows(ThreadPool& pool, const GatherRowsArgs& args) {
  const std::uint32_t rows = read_rows("gather_rows", args.rows, args.max_rows);
  check_type("gather_rows", args.type);
  const auto* ids = host_ptr<const std::uint32_t>(args.row_ids);
  for (std::uint32_t row = 0; row < rows; ++row) {
    if (ids[row] >= args.in_rows) {
      throw InvalidArgument(
          fmt::format("gather_rows: row id {} at {} is not below {}", ids[row], row, args.in_rows));
    }
  }
  const std::size_t row_bytes = std::size_t{args.width} * quant::element_bytes(args.type);
  pool.parallel_for(rows, row_grain(args.width), [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      std::memcpy(host_ptr<std::byte>(args.out) + row * row_bytes,
                  host_ptr<const std::byte>(args.in) + ids[row] * row_bytes, row_bytes);
    }
  });
}

// The first index of the row's largest finite value, given the maxima of its chunks.
std::int32_t pick(const float* row, std::size_t vocab, const float* maxima, std::size_t chunks,
                  std::size_t chunk) {
  std::size_t best = 0;
  for (std::size_t c = 1; c < chunks; ++c) {
    if (maxima[c] > maxima[best]) best = c;
  }
  if (chunks == 0 || maxima[best] == -std::numeric_limits<float>::infinity()) return -1;
  const std::size_t begin = best * chunk;
  const std::size_t count = std::min(chunk, vocab - begin);
  return static_cast<std::int32_t>(begin +
                                   HWY_DYNAMIC_DISPATCH(find_equal)(row + begin, count, maxima[best]));
}

void argmax(ThreadPool& pool, const ArgmaxArgs& args) {
  constexpr std::size_t kChunk = 8192;
  const std::uint32_t rows = read_rows("argmax", args.rows, args.max_rows);
  const auto* logits = host_ptr<const float>(args.logits);
  auto* tokens = host_ptr<std::int32_t>(args.tokens);
  const std::size_t vocab = args.vocab;
  const std::size_t chunks = (vocab + kChunk - 1) / kChunk;
  std::vector<float> maxima(rows * chunks);
  pool.parallel_for(maxima.size(), 2, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t at = i % chunks * kChunk;
      maxima[i] =
          HWY_DYNAMIC_DISPATCH(max_finite)(logits + i / chunks * vocab + at, std::min(kChunk, vocab - at));
    }
  });
  for (std::size_t row = 0; row < rows; ++row) {
    tokens[row] = pick(logits + row * vocab, vocab, maxima.data() + row * chunks, chunks, kChunk);
  }
}

}  // namespace

void register_logits(gpu::CpuKernelTable& table) {
  table.add<gather_rows>(kGatherRows);
  table.add<argmax>(kArgmax);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
