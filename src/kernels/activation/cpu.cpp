// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/activation.h>

#include "kernels/host_args.h"
#include "kernels/register.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/math/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

constexpr std::size_t kChunk = 1024;  // elements widened at a time

void silu_mul_rows(const SiluMulArgs& a, std::size_t begin, std::size_t end) {
  alignas(64) float gate[kChunk];
  alignas(64) float up[kChunk];
  const FloatTag d;
  const FloatVec one = hn::Set(d, 1.0F);
  const std::size_t bytes = quant::element_bytes(a.type);
  for (std::size_t row = begin; row < end; ++row) {
    const std::size_t in_at = row * a.in_stride * bytes;
    const std::size_t out_at = row * a.out_stride * bytes;
    for (std::size_t at = 0; at < a.width; at += kChunk) {
      const std::size_t count = a.width - at < kChunk ? a.width - at : kChunk;
      widen(a.type, host_ptr<const std::byte>(a.gate) + in_at + at * bytes, count, gate);
      widen(a.type, host_ptr<const std::byte>(a.up) + in_at + at * bytes, count, up);
      for (std::size_t i = 0; i < count; i += kVec) {
        const FloatVec g = load_vec(gate + i);
        const FloatVec silu = hn::Div(g, hn::Add(one, exp_vec(hn::Neg(g))));
        store_vec(hn::Mul(silu, load_vec(up + i)), gate + i);
      }
      narrow(a.type, gate, count, host_ptr<std::byte>(a.out) + out_at + at * bytes);
    }
  }
}

void residual_add_rows(const ResidualAddArgs& a, std::size_t begin, std::size_t end) {
  alignas(64) float in[kChunk];
  alignas(64) float sum[kChunk];
  const std::size_t bytes = quant::element_bytes(a.in_type);
  for (std::size_t row = begin; row < end; ++row) {
    float* accum = host_ptr<float>(a.accum) + row * a.width;
    for (std::size_t at = 0; at < a.width; at += kChunk) {
      const std::size_t count = a.width - at < kChunk ? a.width - at : kChunk;
      widen(a.in_type, host_ptr<const std::byte>(a.in) + (row * a.width + at) * bytes, count, in);
      widen_as(accum + at, count, sum);
      for (std::size_t i = 0; i < count; i += kVec) {
        store_vec(hn::Add(load_vec(sum + i), load_vec(in + i)), sum + i);
      }
      narrow_as(sum, count, accum + at);
    }
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {
namespace {

HWY_EXPORT(silu_mul_rows);
HWY_EXPORT(residual_add_rows);

void silu_mul(ThreadPool& pool, const SiluMulArgs& args) {
  const std::uint32_t rows = read_rows("silu_mul", args.rows, args.max_rows);
  check_type("silu_mul", args.type);
  pool.parallel_for(rows, row_grain(args.width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(silu_mul_rows)(args, begin, end);
  });
}

void residual_add(ThreadPool& pool, const ResidualAddArgs& args) {
  const std::uint32_t rows = read_rows("residual_add", args.rows, args.max_rows);
  check_type("residual_add", args.in_type);
  pool.parallel_for(rows, row_grain(args.width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(residual_add_rows)(args, begin, end);
  });
}

}  // namespace

void register_activation(gpu::CpuKernelTable& table) {
  table.add<silu_mul>(kSiluMul);
  table.add<residual_add>(kResidualAdd);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
