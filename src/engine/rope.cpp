// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>

#include <metrale/engine/rope.h>

namespace metrale::engine {
namespace {

double llama3_frequency(const RopeScaling& scaling, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double original = scaling.original_max_position;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// The pairs between which YaRN blends from kept to stretched.
struct YarnRange {
  double low = 0;
  double high = 0;
};

YarnRange yarn_range(const RopeConfig& rope, std::uint32_t head_dim) {
  // The pair that turns so many times over the original range, as a fraction of pairs.
  const auto pair_of = [&](double rotations) {
    return head_dim * std::log(rope.scaling.original_max_position / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  YarnRange range{pair_of(rope.scaling.beta_fast), pair_of(rope.scaling.beta_slow)};
  if (rope.scaling.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  range = {std::max(range.low, 0.0), std::min(range.high, head_dim - 1.0)};
  if (range.low == range.high) range.high += 0.001;  // as the reference does against a division by zero
  return range;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::uint32_t head_dim) {
  std::vector<float> frequencies(head_dim / 2);
  const RopeScaling& scaling = rope.scaling;
  const YarnRange range = scaling.kind == RopeScalingKind::kYarn ? yarn_range(rope, head_dim) : YarnRange{};
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double frequency = 1 / std::pow(rope.theta, 2.0 * static_cast<double>(i) / head_dim);
    double scaled = frequency;
    if (scaling.kind == RopeScalingKind::kLinear) {
      scaled = frequency / scaling.factor;
    } else if (scaling.kind == RopeScalingKind::kLlama3) {
      scaled = llama3_frequency(scaling, frequency);
    } else if (scaling.kind == RopeScalingKind::kYarn) {
      const double stretched =
          std::clamp((static_cast<double>(i) - range.low) / (range.high - range.low), 0.0, 1.0);
      scaled = frequency / scaling.factor * stretched + frequency * (1 - stretched);
    }
    frequencies[i] = static_cast<float>(scaled);
  }
  return frequencies;
}

}  // namespace metrale::engine
