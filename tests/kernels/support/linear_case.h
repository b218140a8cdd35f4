// SPDX-License-Identifier: Apache-2.0
// One call of linear on memory of the test, and a slow obvious model of it in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include <metrale/base/cpu_features.h>
#include <metrale/kernels/linear.h>

#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {

struct LinearCase {
  std::uint32_t rows = 1;
  std::uint32_t in_features = 1;
  std::uint32_t out_features = 1;
  quant::ElementType in_type = quant::ElementType::kF32;
  quant::ElementType weight_type = quant::ElementType::kF32;
  quant::ElementType out_type = quant::ElementType::kF32;
  bool bias = false;
  std::uint32_t in_gap = 0;  // elements between the rows
  std::uint32_t out_gap = 0;
  std::uint32_t spare_rows = 0;  // max_rows - rows

  [[nodiscard]] std::uint32_t in_stride() const { return in_features + in_gap; }
  [[nodiscard]] std::uint32_t out_stride() const { return out_features + out_gap; }
};

struct LinearData {
  Elements in;
  Elements weight;
  Elements bias;
};

[[nodiscard]] inline LinearData random_linear(std::mt19937& random, const LinearCase& c) {
  return {Elements(c.in_type, random_normal(random, std::size_t{c.rows} * c.in_stride())),
          Elements(c.weight_type, random_normal(random, std::size_t{c.out_features} * c.in_features, 0.25F)),
          Elements(c.weight_type, random_normal(random, c.out_features))};
}

// What the elements of the output hold before the call.
inline constexpr float kUntouched = -7.0F;

// The output with its gaps.
[[nodiscard]] inline Elements run_linear(const LinearCase& c, const LinearData& data, unsigned threads = 2,
                                         const gpu::KernelId<LinearArgs>& kernel = kLinear) {
  ThreadPool pool(threads);
  Elements out(c.out_type,
               std::vector<float>(std::size_t{c.rows + c.spare_rows} * c.out_stride(), kUntouched));
  const std::uint32_t rows = c.rows;
  run_kernel(pool, kernel,
             LinearArgs{.rows = address(&rows),
                        .in = data.in.address(),
                        .weight = data.weight.address(),
                        .bias = c.bias ? data.bias.address() : 0,
                        .out = out.address(),
                        .max_rows = c.rows + c.spare_rows,
                        .in_features = c.in_features,
                        .out_features = c.out_features,
                        .in_stride = c.in_stride(),
                        .out_stride = c.out_stride(),
                        .in_type = c.in_type,
                        .weight_type = c.weight_type,
                        .out_type = c.out_type});
  return out;
}

// The bytes of output row `row` without its gap.
[[nodiscard]] inline std::vector<std::byte> linear_row(const LinearCase& c, const Elements& out,
                                                       std::uint32_t row) {
  const std::size_t width = quant::element_bytes(c.out_type);
  const auto begin =
      out.bytes().begin() + static_cast<std::ptrdiff_t>(std::size_t{row} * c.out_stride() * width);
  return {begin, begin + static_cast<std::ptrdiff_t>(c.out_features * width)};
}

// The case and data of row `row` by itself.
[[nodiscard]] inline LinearCase single_row(LinearCase c) {
  c.rows = 1;
  c.in_gap = c.out_gap = c.spare_rows = 0;
  return c;
}
[[nodiscard]] inline LinearData single_row(const LinearCase& c, const LinearData& data, std::uint32_t row) {
  Elements in(c.in_type, c.in_features);
  for (std::uint32_t k = 0; k < c.in_features; ++k) {
    in.set(k, data.in.get(std::size_t{row} * c.in_stride() + k));
  }
  return {in, data.weight, data.bias};
}

// The exact value of an output, and how far FP32 sums in any order and the rounding of the result may be
// from it.
struct LinearModel {
  double value = 0;
  double tolerance = 0;
};
[[nodiscard]] inline LinearModel model_linear(const LinearCase& c, const LinearData& data, std::uint32_t row,
                                              std::uint32_t out) {
  LinearModel model;
  double magnitude = 0;
  for (std::uint32_t k = 0; k < c.in_features; ++k) {
    const double product = double{data.in.get(std::size_t{row} * c.in_stride() + k)} *
                           double{data.weight.get(std::size_t{out} * c.in_features + k)};
    model.value += product;
    magnitude += std::abs(product);
  }
  if (c.bias) {
    model.value += double{data.bias.get(out)};
    magnitude += std::abs(double{data.bias.get(out)});
  }
  model.tolerance = magnitude * 0x1p-24 * (c.in_features + 2) +
                    std::abs(model.value) * rounding_error(c.out_type) * 1.01 +
                    (c.out_type == quant::ElementType::kF16 ? 0x1p-25 : 0x1p-120);
  return model;
}

// Every instruction set that this run may use, and back to the best one at the end.
class EachIsa {
 public:
  EachIsa() : best_(cpu_isa()) {}
  ~EachIsa() { limit_cpu_isa(best_); }
  EachIsa(const EachIsa&) = delete;
  EachIsa& operator=(const EachIsa&) = delete;

  template <class Body>
  void operator()(Body&& body) const {
    for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
      if (isa > best_) continue;
      limit_cpu_isa(isa);
      body(isa);
    }
  }

 private:
  CpuIsa best_;
};

}  // namespace metrale::kernels
