// SPDX-License-Identifier: Apache-2.0
// A pool of keys of any format, a shift of some of them, and what the shift should give: by definition in
// FP32, and in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <metrale/kernels/kv_shift.h>
#include <metrale/quant/hadamard.h>
#include <metrale/quant/kv_codec.h>

#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {

using quant::KvFormat;
using quant::KvSide;

inline constexpr std::uint32_t kHeads = 2;
inline constexpr std::uint32_t kBlockSize = 16;
inline constexpr std::uint32_t kBlocks = 3;
inline constexpr std::uint32_t kSlots = kBlocks * kBlockSize;

using Pool = std::vector<std::byte>;

// What one layer adds to its keys.
struct Params {
  Params(std::mt19937& random, std::uint32_t head_dim)
      : dim(head_dim),
        scales{0.011F, 0.02F},
        diagonal(random_normal(random, std::size_t{kHeads} * head_dim)),
        mean(random_normal(random, std::size_t{kHeads} * head_dim)) {
    for (float& d : diagonal) d = d < 0 ? d / 4 - 1 : d / 4 + 1;
  }
  [[nodiscard]] KvSideParams args() const { return {address(scales), address(diagonal), address(mean)}; }
  [[nodiscard]] quant::KvHeadParams of_head(std::size_t head) const {
    return {.scale = scales[head],
            .diagonal = std::span(diagonal).subspan(head * dim, dim),
            .mean = std::span(mean).subspan(head * dim, dim)};
  }

  std::uint32_t dim;
  std::vector<float> scales;
  std::vector<float> diagonal;
  std::vector<float> mean;
};

// A pool of keys of one format.
class Keys {
 public:
  Keys(KvFormat format, std::uint32_t head_dim, const Params& params)
      : format_(format),
        head_dim_(head_dim),
        params_(params),
        bytes_(kBlocks * quant::kv_side_bytes(format, kBlockSize, kHeads, head_dim), std::byte{0xFF}) {}

  // Of one token, [head][head_dim], as they come from the model.
  void store(std::size_t slot, std::span<const float> keys) {
    for (std::size_t head = 0; head < kHeads; ++head) {
      stripe(slot, head)
          .encode(slot % kBlockSize, params_.of_head(head), keys.subspan(head * head_dim_, head_dim_));
    }
  }
  // One head's vector in the basis of the format.
  [[nodiscard]] std::vector<float> stored(std::size_t slot, std::size_t head) {
    std::vector<float> y(head_dim_);
    stripe(slot, head).decode(slot % kBlockSize, params_.of_head(head), y);
    return y;
  }
  // In the model's basis.
  [[nodiscard]] std::vector<float> key(std::size_t slot, std::size_t head) {
    const std::vector<float> y = stored(slot, head);
    if (!quant::kv_format_info(format_).rotated) return y;
    std::vector<float> x(head_dim_);
    quant::unrotate(params_.of_head(head), y, x);
    return x;
  }
  void put(std::size_t slot, std::size_t head, std::span<const float> key) {
    stripe(slot, head).encode(slot % kBlockSize, params_.of_head(head), key);
  }

  [[nodiscard]] KvFormat format() const { return format_; }
  [[nodiscard]] std::uint32_t head_dim() const { return head_dim_; }
  [[nodiscard]] const Params& params() const { return params_; }
  [[nodiscard]] Pool& bytes() { return bytes_; }

 private:
  [[nodiscard]] quant::KvStripe stripe(std::size_t slot, std::size_t head) {
    const std::size_t size = quant::kv_head_stripe_bytes(format_, kBlockSize, head_dim_);
    return {format_, KvSide::kKey, kBlockSize, head_dim_,
            std::span(bytes_).subspan((slot / kBlockSize * kHeads + head) * size, size)};
  }

  KvFormat format_;
  std::uint32_t head_dim_;
  const Params& params_;
  Pool bytes_;
};

[[nodiscard]] inline std::vector<float> inverse_frequencies(std::size_t half) {
  std::vector<float> inv_freq(half);
  for (std::size_t i = 0; i < half; ++i) {
    inv_freq[i] = static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
  }
  return inv_freq;
}

struct Shift {
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> deltas;
  std::uint32_t rotary_dim;

  [[nodiscard]] Shift back() const {
    Shift other = *this;
    for (std::int32_t& delta : other.deltas) delta = -delta;
    return other;
  }
};

[[nodiscard]] inline KvShiftArgs shift_args(Keys& keys, const Shift& shift, const std::uint32_t& rows,
                                            const std::vector<float>& inv_freq) {
  return {.rows = address(&rows),
          .slots = address(shift.slots),
          .deltas = address(shift.deltas),
          .inv_freq = address(inv_freq),
          .k_pool = address(keys.bytes()),
          .max_rows = rows,
          .num_kv_heads = kHeads,
          .head_dim = keys.head_dim(),
          .rotary_dim = shift.rotary_dim,
          .block_size = kBlockSize,
          .num_blocks = kBlocks,
          .k_format = keys.format(),
          .reserved = 0,
          .k_params = keys.params().args()};
}

inline void run_shift(Keys& keys, const Shift& shift, ThreadPool& pool = test_pool()) {
  const std::vector<float> inv_freq = inverse_frequencies(shift.rotary_dim / 2);
  const auto rows = static_cast<std::uint32_t>(shift.slots.size());
  run_kernel(pool, kKvShift, shift_args(keys, shift, rows, inv_freq));
}

// Every slot, in an order of its own, each with the delta that `delta_of` gives.
template <class DeltaOf>
[[nodiscard]] Shift shift_of_all(std::uint32_t rotary_dim, const DeltaOf& delta_of) {
  Shift shift{.slots = std::vector<std::int64_t>(kSlots), .deltas = {}, .rotary_dim = rotary_dim};
  std::iota(shift.slots.begin(), shift.slots.end(), 0);
  std::shuffle(shift.slots.begin(), shift.slots.end(), std::mt19937(9));
  for (const std::int64_t slot : shift.slots) shift.deltas.push_back(delta_of(slot));
  return shift;
}

// The turn in double precision, over the angles of the contract.
[[nodiscard]] inline std::vector<double> turned(std::span<const double> x, std::int32_t delta,
                                                std::uint32_t rotary_dim) {
  std::vector<double> out(x.begin(), x.end());
  const std::size_t half = rotary_dim / 2;
  const std::vector<float> inv_freq = inverse_frequencies(half);
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = static_cast<float>(delta) * inv_freq[i];
    out[i] = x[i] * std::cos(angle) - x[half + i] * std::sin(angle);
    out[half + i] = x[half + i] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return out;
}

// The same in FP32, operation by operation.
[[nodiscard]] inline std::vector<float> turned_by_definition(std::span<const float> x, std::int32_t delta,
                                                             std::uint32_t rotary_dim) {
  std::vector<float> out(x.begin(), x.end());
  const std::size_t half = rotary_dim / 2;
  const std::vector<float> inv_freq = inverse_frequencies(half);
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = static_cast<float>(delta) * inv_freq[i];
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    out[i] = std::fma(-x[half + i], sine, x[i] * cosine);
    out[half + i] = std::fma(x[i], sine, x[half + i] * cosine);
  }
  return out;
}

// H in double precision.
[[nodiscard]] inline std::vector<double> transformed(std::span<const double> x) {
  const std::size_t block = quant::hadamard_block(static_cast<std::uint32_t>(x.size()));
  std::vector<double> y(x.begin(), x.end());
  for (std::size_t distance = 1; distance < block; distance *= 2) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      if ((i & distance) != 0) continue;
      const double a = y[i];
      y[i] = a + y[i + distance];
      y[i + distance] = a - y[i + distance];
    }
  }
  for (double& v : y) v /= std::sqrt(static_cast<double>(block));
  return y;
}

// A stored vector after the shift if nothing rounded, in the basis of the format.
[[nodiscard]] inline std::vector<double> ideal(KvFormat format, const quant::KvHeadParams& params,
                                               std::span<const float> stored, std::int32_t delta,
                                               std::uint32_t rotary_dim) {
  std::vector<double> x(stored.begin(), stored.end());
  const bool rotated = quant::kv_format_info(format).rotated;
  if (rotated) {
    x = transformed(x);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = x[i] / params.diagonal[i] + params.mean[i];
  }
  x = turned(x, delta, rotary_dim);
  if (rotated) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = (x[i] - params.mean[i]) * params.diagonal[i];
    x = transformed(x);
  }
  return x;
}

// Sum of squared differences against the squared size of what was expected.
struct Error {
  double squares = 0;
  double power = 0;

  template <class Expected>
  void add(std::span<const float> got, const Expected& expected) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      squares += std::pow(double{got[i]} - static_cast<double>(expected[i]), 2);
      power += std::pow(static_cast<double>(expected[i]), 2);
    }
  }
  [[nodiscard]] double relative() const { return squares / power; }
};

}  // namespace metrale::kernels
