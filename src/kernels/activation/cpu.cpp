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

struct Silu {
  HWY_INLINE FloatVec operator()(FloatVec g) const {
    return hn::Div(g, hn::Add(hn::Set(FloatTag(), 1.0F), exp_vec(hn::Neg(g))));
  }
};

struct GeluTanh {
  HWY_INLINE FloatVec operator()(FloatVec g) const {
    const FloatTag d;
    // -2 sqrt(2 / pi) and its product with 0.044715.
    const FloatVec inner =
        hn::MulAdd(hn::Mul(g, g), hn::Set(d, -0.0713548162726F), hn::Set(d, -1.5957691216057F));
    return hn::Div(g, hn::Add(hn::Set(d, 1.0F), exp_vec(hn::Mul(g, inner))));
  }
};

template <class Gate>
void gated_mul_rows(const GatedMulArgs& a, std::size_t begin, std::size_t end, const Gate& apply) {
  alignas(64) float gate[kChunk];
  alignas(64) float up[kChunk];
  const std::size_t bytes = quant::element_bytes(a.type);
  for (std::size_t row = begin; row < end; ++row) {
    const std::size_t in_at = row * a.in_stride * bytes;
    const std::size_t out_at = row * a.out_stride * bytes;
    for (std::size_t at = 0; at < a.width; at += kChunk) {
      const std::size_t count = a.width - at < kChunk ? a.width - at : kChunk;
      widen(a.type, host_ptr<const std::byte>(a.gate) + in_at + at * bytes, count, gate);
      widen(a.type, host_ptr<const std::byte>(a.up) + in_at + at * bytes, count, up);
      for (std::size_t i = 0; i < count; i += kVec) {
        store_vec(hn::Mul(apply(load_vec(gate + i)), load_vec(up + i)), gate + i);
      }
      narrow(a.type, gate, count, host_ptr<std::byte>(a.out) + out_at + at * bytes);
    }
  }
}

void silu_mul_rows(const GatedMulArgs& a, std::size_t begin, std::size_t end) {
  gated_mul_rows(a, begin, end, Silu());
}

void gelu_tanh_mul_rows(const GatedMulArgs& a, std::size_t begin, std::size_t end) {
  gated_mul_rows(a, begin, end, GeluTanh());
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
HWY_EXPORT(gelu_tanh_mul_rows);
HWY_EXPORT(residual_add_rows);

void silu_mul(ThreadPool& pool, const GatedMulArgs& args) {
  const std::uint32_t rows = read_rows("silu_mul", args.rows, args.max_rows);
  check_type("silu_mul", args.type);
  pool.parallel_for(rows, row_grain(args.width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(silu_mul_rows)(args, begin, end);
  });
}

void gelu_tanh_mul(ThreadPool& pool, const GatedMulArgs& args) {
  const std::uint32_t rows = read_rows("gelu_tanh_mul", args.rows, args.max_rows);
  check_type("gelu_tanh_mul", args.type);
  pool.parallel_for(rows, row_grain(args.width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_tanh_mul_rows)(args, begin, end);
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
  table.add<gelu_tanh_mul>(kGeluTanhMul);
  table.add<residual_add>(kResidualAdd);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
