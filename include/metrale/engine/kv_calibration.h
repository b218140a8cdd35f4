// SPDX-License-Identifier: Apache-2.0
// KvCalibration: what a model's keys and values look like, layer by layer, and what follows for the formats
// of its cache: the ranges that fp8 and nvfp4 must cover, an equaliser and a mean for rotated keys, and the
// format that each side of a layer was given under a budget. docs/formats/kv_calibration.md has the file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <metrale/engine/model_config.h>
#include <metrale/quant/kv_dtype.h>

namespace metrale::engine {

struct KvLayerCalibration {
  // [num_kv_heads]: magnitudes that a scale must represent; twice the largest that was seen.
  std::vector<float> k_range;
  std::vector<float> v_range;
  // [num_kv_heads][head_dim], of rotated formats; empty: zeros and ones. Keys are stored as
  // (k - mean) / equaliser, queries meet them as q * equaliser; values as v / equaliser.
  std::vector<float> k_mean;
  std::vector<float> k_equaliser;
  std::vector<float> v_equaliser;
  // As --kv-dtype calibrated takes them.
  std::optional<quant::KvDtype> dtype;
  // Kept in BF16 by --kv-high-precision-layers auto.
  bool high_precision = false;

  friend bool operator==(const KvLayerCalibration&, const KvLayerCalibration&) = default;
};

struct KvCalibration {
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint64_t tokens = 0;  // that it was measured on
  std::vector<KvLayerCalibration> layers;

  // Throws InvalidArgument where it is of a model of another shape.
  void check_fits(const ModelConfig& config) const;
  friend bool operator==(const KvCalibration&, const KvCalibration&) = default;
};

// `path` is for messages. Throws FormatError naming the field.
[[nodiscard]] KvCalibration parse_kv_calibration(const std::string& text, const std::string& path);
[[nodiscard]] std::string to_json(const KvCalibration& calibration);
// Throws IoError, FormatError.
[[nodiscard]] KvCalibration read_kv_calibration(const std::string& path);

// Which layers keep their keys and values in BF16 whatever the rest has.
struct KvHighPrecision {
  std::uint32_t boundary_layers = 0;  // so many first and so many last ones
  bool calibrated = false;            // those that the calibration marks

  friend bool operator==(const KvHighPrecision&, const KvHighPrecision&) = default;
};

// The format of every layer's cache. `dtype` none: as calibrated. Throws InvalidArgument where a calibration
// is asked for that is not there, or that names no formats.
[[nodiscard]] std::vector<quant::KvDtype> resolve_kv_dtypes(std::uint32_t num_layers,
                                                            std::optional<quant::KvDtype> dtype,
                                                            const KvHighPrecision& high_precision,
                                                            const KvCalibration* calibration);

// Some side of some layer has a format that a calibration's ranges make scales for.
[[nodiscard]] bool needs_kv_scales(std::span<const quant::KvDtype> layers);

// Bits that an element takes, headers included, averaged over layers and sides.
[[nodiscard]] double mean_kv_bits(std::span<const quant::KvDtype> layers, std::uint32_t head_dim);

}  // namespace metrale::engine
