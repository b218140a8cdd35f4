// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <metrale/kernels/norm.h>

#include "kernels/host_args.h"
#include "kernels/register.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/math/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

constexpr std::size_t kChunk = 1024;  // elements widened at a time

float sum_of_squares(quant::ElementType type, const std::byte* row, std::size_t width) {
  alignas(64) float x[kChunk];
  Lanes16 sums = set_lanes(0.0F);
  for (std::size_t at = 0; at < width; at += kChunk) {
    const std::size_t count = width - at < kChunk ? width - at : kChunk;
    widen(type, row + at * quant::element_bytes(type), count, x);
    for (std::size_t i = 0; i < count; i += kLanes) {
#pragma GCC unroll 2
      for (std::size_t k = 0; k < kParts; ++k) {
        const FloatVec v = load_vec(x + i + k * kVec);
        sums.part[k] = hn::MulAdd(v, v, sums.part[k]);
      }
    }
  }
  return sum_lanes(sums);
}

struct Span {
  std::size_t width;
  float epsilon;
  quant::ElementType in_type;
  quant::ElementType weight_type;
  quant::ElementType out_type;
  const std::byte* weight;
};

// `width` elements from `in` to `out`.
void rms_norm_span(const Span& a, const std::byte* in, std::byte* out) {
  alignas(64) float x[kChunk];
  alignas(64) float w[kChunk];
  const std::size_t in_bytes = quant::element_bytes(a.in_type);
  const std::size_t weight_bytes = quant::element_bytes(a.weight_type);
  const std::size_t out_bytes = quant::element_bytes(a.out_type);
  const float mean = sum_of_squares(a.in_type, in, a.width) / static_cast<float>(a.width);
  const FloatVec inverse = hn::Set(FloatTag(), 1.0F / std::sqrt(mean + a.epsilon));
  for (std::size_t at = 0; at < a.width; at += kChunk) {
    const std::size_t count = a.width - at < kChunk ? a.width - at : kChunk;
    widen(a.in_type, in + at * in_bytes, count, x);
    widen(a.weight_type, a.weight + at * weight_bytes, count, w);
    for (std::size_t i = 0; i < count; i += kVec) {
      store_vec(hn::Mul(hn::Mul(load_vec(x + i), inverse), load_vec(w + i)), x + i);
    }
    narrow(a.out_type, x, count, out + at * out_bytes);
  }
}

void rms_norm_rows(const RmsNormArgs& a, std::size_t begin, std::size_t end) {
  const std::size_t in_bytes = quant::element_bytes(a.in_type);
  const std::size_t out_bytes = quant::element_bytes(a.out_type);
  const Span span{.width = a.width,
                  .epsilon = a.epsilon,
                  .in_type = a.in_type,
                  .weight_type = a.weight_type,
                  .out_type = a.out_type,
                  .weight = host_ptr<const std::byte>(a.weight)};
  for (std::size_t row = begin; row < end; ++row) {
    const auto* in = host_ptr<const std::byte>(a.in) + row * a.in_stride * in_bytes;
    auto* out = host_ptr<std::byte>(a.out) + row * a.out_stride * out_bytes;
    for (std::size_t group = 0; group < a.groups; ++group) {
      rms_norm_span(span, in + group * a.width * in_bytes, out + group * a.width * out_bytes);
    }
  }
}

void add_rms_norm_rows(const AddRmsNormArgs& a, std::size_t begin, std::size_t end) {
  const std::size_t out_bytes = quant::element_bytes(a.out_type);
  const Span span{.width = a.width,
                  .epsilon = a.epsilon,
                  .in_type = quant::ElementType::kF32,
                  .weight_type = quant::ElementType::kF32,
                  .out_type = a.out_type,
                  .weight = host_ptr<const std::byte>(a.weight)};
  for (std::size_t row = begin; row < end; ++row) {
    const float* in = host_ptr<const float>(a.in) + row * a.width;
    float* accum = host_ptr<float>(a.accum) + row * a.width;
    std::size_t i = 0;
    for (; i + kVec <= a.width; i += kVec) {
      store_vec(hn::Add(load_vec(accum + i), load_vec(in + i)), accum + i);
    }
    for (; i < a.width; ++i) accum[i] += in[i];
    rms_norm_span(span, reinterpret_cast<const std::byte*>(accum),
                  host_ptr<std::byte>(a.out) + row * a.width * out_bytes);
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace metrale::kernels {
namespace {

HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(add_rms_norm_rows);

void rms_norm(ThreadPool& pool, const RmsNormArgs& args) {
  const std::uint32_t rows = read_rows("rms_norm", args.rows, args.max_rows);
  check_type("rms_norm", args.in_type);
  check_type("rms_norm", args.weight_type);
  check_type("rms_norm", args.out_type);
  const std::size_t width = std::size_t{args.groups} * args.width;
  pool.parallel_for(rows, row_grain(width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(rms_norm_rows)(args, begin, end);
  });
}

void add_rms_norm(ThreadPool& pool, const AddRmsNormArgs& args) {
  const std::uint32_t rows = read_rows("add_rms_norm", args.rows, args.max_rows);
  check_type("add_rms_norm", args.out_type);
  pool.parallel_for(rows, row_grain(args.width), [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(add_rms_norm_rows)(args, begin, end);
  });
}

}  // namespace

void register_norm(gpu::CpuKernelTable& table) {
  table.add<rms_norm>(kRmsNorm);
  table.add<add_rms_norm>(kAddRmsNorm);
}

}  // namespace metrale::kernels
#endif  // HWY_ONCE
