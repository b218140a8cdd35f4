// SPDX-License-Identifier: Apache-2.0
#include "engine/synthetic_values.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include <metrale/base/hash.h>
#include <metrale/quant/float_convert.h>

namespace metrale::engine {
namespace {

constexpr std::size_t kRanges = 65'536;
constexpr std::uint64_t kPerHash = 4;  // values of 16 bits from one hash
constexpr float kNormDeviation = 0.1F;
constexpr float kBiasDeviation = 0.02F;

// The upper half of the quantiles, by Newton's method from one to the next.
std::vector<float> normal_quantiles() {
  std::vector<float> quantiles(kRanges);
  double z = 0;
  for (std::size_t i = kRanges / 2; i < kRanges; ++i) {
    const double above = 1 - (static_cast<double>(i) + 0.5) / kRanges;
    for (int step = 0; step < 8; ++step) {
      const double tail = 0.5 * std::erfc(z / std::numbers::sqrt2);
      const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
      z += (tail - above) / density;
    }
    quantiles[i] = static_cast<float>(z);
    quantiles[kRanges - 1 - i] = -static_cast<float>(z);
  }
  return quantiles;
}

// A bijection of 64 bits in which every input bit moves every output bit.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93U;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93U;
  return x ^ (x >> 32);
}

template <class Store>
void fill_with(const std::vector<float>& quantiles, const SyntheticValues::Distribution& distribution,
               std::uint64_t first, std::size_t count, const Store& store) {
  for (std::size_t i = 0; i < count; i += kPerHash) {
    std::uint64_t bits = mix(distribution.key + mix((first + i) / kPerHash));
    for (std::size_t lane = i; lane < std::min<std::size_t>(i + kPerHash, count); ++lane) {
      store(lane, distribution.mean + distribution.deviation * quantiles[bits & (kRanges - 1)]);
      bits >>= 16;
    }
  }
}

}  // namespace

SyntheticValues::SyntheticValues(std::uint64_t seed) : seed_(seed), quantiles_(normal_quantiles()) {}

SyntheticValues::Distribution SyntheticValues::distribution(std::string_view name,
                                                            const std::vector<std::uint64_t>& shape) const {
  const std::uint64_t key = hash64(std::as_bytes(std::span(name)), seed_);
  if (shape.size() >= 2) {
    return {key, 0, 1 / std::sqrt(static_cast<float>(shape.back()))};
  }
  return name.ends_with(".bias") ? Distribution{key, 0, kBiasDeviation}
                                 : Distribution{key, 1, kNormDeviation};
}

void SyntheticValues::fill(const Distribution& distribution, std::uint64_t first, quant::ElementType dtype,
                           std::span<std::byte> out) const {
  const std::size_t width = quant::element_bytes(dtype);
  const auto store_as = [&](auto convert) {
    fill_with(quantiles_, distribution, first, out.size() / width, [&](std::size_t i, float value) {
      const auto stored = convert(value);
      std::memcpy(out.data() + i * width, &stored, width);
    });
  };
  switch (dtype) {
    case quant::ElementType::kF32:
      return store_as([](float value) { return value; });
    case quant::ElementType::kBf16:
      return store_as(quant::float_to_bf16);
    case quant::ElementType::kF16:
      return store_as(quant::float_to_f16);
  }
}

}  // namespace metrale::engine
