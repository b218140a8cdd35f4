// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <metrale/kernels/rope.h>

#include "kernels/host_args.h"
#include "kernels/register.h"
#include "kernels/rope/args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope/cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/math/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// Turns `half` pairs (a[i], b[i]).
void rotate(quant::ElementType type, std::byte* a, std::byte* b, const float* cosines, const float* sines,
            std::size_t half) {
  constexpr std::size_t kChunk = 256;
  alignas(64) float x[kChunk];
  alignas(64) float y[kChunk];
  alignas(64) float c[kChunk];
  alignas(64) float s[kChunk];
  const std::size_t bytes = quant::element_bytes(type);
  for (std::size_t at = 0; at < half; at += kChunk) {
    const std::size_t count = half - at < kChunk ? half - at : kChunk;
    widen(type, a + at * bytes, count, x);
    widen(type, b + at * bytes, count, y);
    widen_as(cosines + at, count, c);
    widen_as(sines + at, count, s);
    for (std::size_t i = 0; i < count; i += kVec) {
      const FloatVec vx = load_vec(x + i);
      const FloatVec vy = load_vec(y + i);
      const FloatVec vc = load_vec(c + i);
      const FloatVec vs = load_vec(s + i);
      store_vec(hn::NegMulAdd(vy, vs, hn::Mul(vx, vc)), x + i);
      store_vec(hn::MulAdd(vx, vs, hn::Mul(vy, vc)), y + i);
    }
    narrow(type, x, count, a + at * bytes);
    narrow(type, y, count, b + at * bytes);
  }
}

void rope_rows(const RopeArgs& a, std::size_t begin, std::size_t end) {
  const std::size_t bytes = quant::element_bytes(a.type);
  const std::size_t half = a.rotary_dim / 2;
  for (std::size_t row = begin; row < end; ++row) {
    const float* cosines = host_ptr<const float>(a.table) + row * 2 * half;
    std::byte* data = host_ptr<std::byte>(a.data) + row * a.stride * bytes;
    for (std::size_t head = 0; head < a.num_heads; ++head) {
      std::byte* first = data + head * a.head_dim * bytes;
      rotate(a.type, first, first + half * bytes, cosines, cosines + half, half);
    }
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {
namespace {

HWY_EXPORT(rope_rows);

// The base of the powers that give the frequencies at a position past the model's own range.
double dynamic_base(const RopeTableArgs& a, std::uint32_t position) {
  const double stretch = double{a.dynamic_factor} * (static_cast<double>(position) + 1) / a.dynamic_from -
                         (double{a.dynamic_factor} - 1);
  return a.dynamic_theta * std::pow(stretch, a.half_dims / (a.half_dims - 1.0));
}

void rope_table_row(const RopeTableArgs& a, std::size_t row) {
  const std::uint32_t position = host_ptr<const std::uint32_t>(a.positions)[row];
  const auto* inv_freq = host_ptr<const float>(a.inv_freq);
  const std::size_t half = a.half_dims;
  float* cosines = host_ptr<float>(a.table) + row * 2 * half;
  const bool dynamic = a.dynamic_from != 0 && position >= a.dynamic_from;
  const double base = dynamic ? dynamic_base(a, position) : 0;
  for (std::size_t i = 0; i < half; ++i) {
    const double exponent = static_cast<double>(i) / static_cast<double>(half);
    const float frequency = dynamic ? static_cast<float>(1 / std::pow(base, exponent)) : inv_freq[i];
    // Rounded to float first: part of the contract.
    const double angle = static_cast<float>(position) * frequency;
    cosines[i] = a.factor * static_cast<float>(std::cos(angle));
    cosines[half + i] = a.factor * static_cast<float>(std::sin(angle));
  }
}

void rope_table(ThreadPool& pool, const RopeTableArgs& args) {
  const std::uint32_t rows = read_rows("rope_table", args.rows, args.max_rows);
  check_rope_table(args);
  pool.parallel_for(rows, row_grain(std::size_t{args.half_dims} * 32),
                    [&](std::size_t begin, std::size_t end) {
                      for (std::size_t row = begin; row < end; ++row) rope_table_row(args, row);
                    });
}

void rope(ThreadPool& pool, const RopeArgs& args) {
  const std::uint32_t rows = read_rows("rope", args.rows, args.max_rows);
  check_rope(args);
  const std::size_t width = std::size_t{args.num_heads} * args.head_dim;
  pool.parallel_for(rows, row_grain(width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(rope_rows)(args, begin, end);
  });
}

}  // namespace

void register_rope(gpu::CpuKernelTable& table) {
  table.add<rope_table>(kRopeTable);
  table.add<rope>(kRope);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
