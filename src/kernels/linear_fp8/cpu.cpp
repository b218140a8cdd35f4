// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include <metrale/base/checked.h>
#include <metrale/kernels/linear_fp8.h>
#include <metrale/quant/float_convert.h>

#include "kernels/host_args.h"
#include "kernels/linear_fp8/checks.h"
#include "kernels/register.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;

constexpr std::size_t kLanes = 16;

constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) {
    values[code] = quant::e4m3_to_float(static_cast<std::uint8_t>(code));
  }
  return values;
}();

float load(ElementType type, const std::byte* from) {
  std::uint16_t half = 0;
  switch (type) {
    case ElementType::kF32: {
      float value = 0;
      std::memcpy(&value, from, sizeof(value));
      return value;
    }
    case ElementType::kBf16:
      std::memcpy(&half, from, sizeof(half));
      return quant::bf16_to_float(half);
    case ElementType::kF16:
      std::memcpy(&half, from, sizeof(half));
      return quant::f16_to_float(half);
  }
  return 0;
}

void store(ElementType type, float value, std::byte* to) {
  if (type == ElementType::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const std::uint16_t half =
      type == ElementType::kBf16 ? quant::float_to_bf16(value) : quant::float_to_f16(value);
  std::memcpy(to, &half, sizeof(half));
}

void quantize_fp8(ThreadPool& pool, const QuantizeFp8Args& args) {
  const std::uint32_t rows = read_rows("quantize_fp8", args.rows, args.max_rows);
  check_quantize_fp8("quantize_fp8", args);
  const std::size_t bytes = element_bytes(args.in_type);
  const auto row_at = [&](std::size_t row) {
    return host_ptr<const std::byte>(args.in) + row * args.in_stride * bytes;
  };
  float largest = 0;
  std::mutex mutex;  // of largest
  pool.parallel_for(rows, row_grain(args.width), [&](std::size_t begin, std::size_t end) {
    float mine = 0;
    for (std::size_t row = begin; row < end; ++row) {
      for (std::size_t i = 0; i < args.width; ++i) {
        const float magnitude = std::abs(load(args.in_type, row_at(row) + i * bytes));
        if (std::isfinite(magnitude)) mine = std::max(mine, magnitude);
      }
    }
    const std::lock_guard lock(mutex);
    largest = std::max(largest, mine);
  });
  auto* const factor = host_ptr<float>(args.factor);
  factor[0] = fp8_factor(largest);
  factor[1] = largest;
  pool.parallel_for(rows, row_grain(args.width), [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      auto* const out = host_ptr<std::uint8_t>(args.out) + row * args.width;
      for (std::size_t i = 0; i < args.width; ++i) {
        out[i] = quant::float_to_e4m3(load(args.in_type, row_at(row) + i * bytes) / factor[0]);
      }
    }
  });
}

// Every product is exact in FP32.
float dot(const std::uint8_t* a, const std::uint8_t* b, std::size_t count) {
  std::array<float, kLanes> lanes{};
  for (std::size_t i = 0; i < count; ++i) lanes[i % kLanes] += kE4m3Values[a[i]] * kE4m3Values[b[i]];
  for (std::size_t step = kLanes / 2; step != 0; step /= 2) {
    for (std::size_t lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
  }
  return lanes[0];
}

void linear_fp8(ThreadPool& pool, const LinearFp8Args& args) {
  const std::uint32_t rows = read_rows("linear_fp8", args.rows, args.max_rows);
  check_linear_fp8("linear_fp8", args);
  const float factor = *host_ptr<const float>(args.in_factor) * *host_ptr<const float>(args.weight_factor);
  const std::size_t bytes = element_bytes(args.out_type);
  const std::size_t work = std::size_t{args.in_features} * std::max<std::size_t>(rows, 1);
  pool.parallel_for(args.out_features, row_grain(work), [&](std::size_t begin, std::size_t end) {
    for (std::size_t out = begin; out < end; ++out) {
      const auto* const weight = host_ptr<const std::uint8_t>(args.weight) + out * args.in_features;
      for (std::size_t row = 0; row < rows; ++row) {
        const auto* const in = host_ptr<const std::uint8_t>(args.in) + row * args.in_features;
        store(args.out_type, dot(weight, in, args.in_features) * factor,
              host_ptr<std::byte>(args.out) + (row * args.out_stride + out) * bytes);
      }
    }
  });
}

}  // namespace

void register_linear_fp8(gpu::CpuKernelTable& table) {
  table.add<quantize_fp8>(kQuantizeFp8);
  table.add<linear_fp8>(kLinearFp8);
}

}  // namespace metrale::kernels
