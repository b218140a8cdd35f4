// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_constants.h"

#include <algorithm>

#include <metrale/base/hash.h>
#include <metrale/quant/hadamard.h>
#include <metrale/quant/turbo_record.h>

namespace metrale::engine {
namespace {

using quant::KvFormat;
using quant::KvSide;

// Of the signs that keep a rotated side's numbers alike whatever the model puts into its channels.
constexpr std::uint64_t kRotationSeed = 42;
constexpr std::uint32_t kFingerprintVersion = 1;

// So that `range` is the largest number that the format has.
float scale_of(KvFormat format, float range) {
  constexpr float kE4m3Largest = 448;
  constexpr float kE2m1Largest = 6;
  if (!quant::kv_format_info(format).scaled) return 1;
  return range / (format == KvFormat::kFp8 ? kE4m3Largest : kE4m3Largest * kE2m1Largest);
}

void fill_layer(const KvConstantsLayout& at, std::uint32_t head_dim, quant::KvDtype dtype,
                const KvLayerCalibration& layer, std::span<float> run) {
  const auto or_else = [](const std::vector<float>& values, std::size_t i, float otherwise) {
    return values.empty() ? otherwise : values[i];
  };
  for (std::size_t head = 0; head < at.heads; ++head) {
    run[at.k_scales + head] = scale_of(dtype.k, or_else(layer.k_range, head, 1));
    run[at.v_scales + head] = scale_of(dtype.v, or_else(layer.v_range, head, 1));
  }
  for (std::size_t i = 0; i < at.channels; ++i) {
    const float sign = quant::diagonal_sign(kRotationSeed, static_cast<std::uint32_t>(i % head_dim));
    const float k_divisor = or_else(layer.k_equaliser, i, 1);
    const float v_divisor = or_else(layer.v_equaliser, i, 1);
    run[at.k_diagonal + i] = sign / k_divisor;
    run[at.q_diagonal + i] = sign * k_divisor;
    run[at.k_mean + i] = or_else(layer.k_mean, i, 0);
    run[at.v_diagonal + i] = sign / v_divisor;
    run[at.out_diagonal + i] = sign * v_divisor;
  }
}

}  // namespace

std::vector<float> kv_constants(const ModelConfig& config, std::span<const quant::KvDtype> dtypes,
                                const KvCalibration* calibration) {
  const KvConstantsLayout layout(config.num_kv_heads, config.head_dim);
  std::vector<float> constants(config.num_layers * layout.layer_floats);
  for (std::size_t i = 0; i < config.num_layers; ++i) {
    fill_layer(layout, config.head_dim, i < dtypes.size() ? dtypes[i] : quant::KvDtype{},
               calibration == nullptr ? KvLayerCalibration{} : calibration->layers.at(i),
               std::span(constants).subspan(i * layout.layer_floats, layout.layer_floats));
  }
  return constants;
}

std::uint64_t kv_fingerprint(const ModelConfig& config, std::uint32_t block_size,
                             std::span<const quant::KvDtype> dtypes, std::span<const float> constants) {
  std::vector<std::uint32_t> shape{kFingerprintVersion, config.num_layers, config.num_kv_heads,
                                   config.head_dim, block_size};
  for (const quant::KvDtype dtype : dtypes) {
    shape.push_back(static_cast<std::uint32_t>(dtype.k));
    shape.push_back(static_cast<std::uint32_t>(dtype.v));
  }
  std::uint64_t hash = hash64(std::as_bytes(std::span(shape)));
  for (const KvFormat format : {KvFormat::kTurbo4, KvFormat::kTurbo3, KvFormat::kTurbo2}) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      const quant::TurboLevels levels = quant::turbo_levels(format, side);
      hash = hash64(std::as_bytes(std::span(levels.level)), hash);
    }
  }
  return hash64(std::as_bytes(constants), hash);
}

}  // namespace metrale::engine
