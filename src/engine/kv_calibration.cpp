// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/engine/kv_calibration.h>

#include "engine/json_fields.h"

namespace metrale::engine {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using quant::KvFormat;

constexpr std::string_view kKind = "metrale.kv_calibration";
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{32} << 20;

// Numbers far from those of any model make scales and reciprocals that are no normal floats.
constexpr float kLargest = 1e12F;
constexpr std::size_t kMaxLayers = 4096;

// None where the member is absent.
std::vector<float> read_floats(const JsonFields& fields, std::string_view name, std::size_t count,
                               bool positive) {
  const json* value = fields.find(name);
  if (value == nullptr) return {};
  const std::string expectation =
      fmt::format("an array of {} numbers from {} to 1e12", count, positive ? "1e-12" : "-1e12");
  if (!value->is_array() || value->size() != count) fields.fail(name, expectation);
  std::vector<float> floats;
  floats.reserve(count);
  for (const json& element : *value) {
    if (!element.is_number()) fields.fail(name, expectation);
    const auto number = static_cast<float>(element.get<double>());
    const float least = positive ? 1 / kLargest : -kLargest;
    if (!(number >= least && number <= kLargest)) fields.fail(name, expectation);
    floats.push_back(number);
  }
  return floats;
}

std::vector<float> read_range(const JsonFields& fields, std::string_view name, std::size_t count) {
  std::vector<float> range = read_floats(fields, name, count, /*positive=*/true);
  if (range.empty()) fields.fail(name, fmt::format("an array of {} numbers from 1e-12 to 1e12", count));
  return range;
}

KvLayerCalibration read_layer(const JsonFields& fields, std::size_t heads, std::size_t channels) {
  KvLayerCalibration layer{.k_range = read_range(fields, "k_range", heads),
                           .v_range = read_range(fields, "v_range", heads),
                           .k_mean = read_floats(fields, "k_mean", channels, false),
                           .k_equaliser = read_floats(fields, "k_equaliser", channels, true),
                           .v_equaliser = read_floats(fields, "v_equaliser", channels, true),
                           .dtype = std::nullopt};
  if (const auto name = fields.text("kv_dtype")) {
    try {
      layer.dtype = quant::parse_kv_dtype(*name);
    } catch (const InvalidArgument& error) {
      fields.fail("kv_dtype", fmt::format("a KV dtype ({})", error.what()));
    }
  }
  layer.high_precision = fields.boolean("high_precision").value_or(false);
  return layer;
}

bool has_budget(const KvCalibration& calibration) {
  return std::ranges::any_of(calibration.layers, [](const KvLayerCalibration& layer) {
    return layer.dtype.has_value() || layer.high_precision;
  });
}

}  // namespace

void KvCalibration::check_fits(const ModelConfig& config) const {
  if (layers.size() == config.num_layers && num_kv_heads == config.num_kv_heads &&
      head_dim == config.head_dim) {
    return;
  }
  throw InvalidArgument(fmt::format(
      "the KV calibration is of another model: {} layers of {} KV heads of {}; the model has {} of {} of {}",
      layers.size(), num_kv_heads, head_dim, config.num_layers, config.num_kv_heads, config.head_dim));
}

KvCalibration parse_kv_calibration(const std::string& text, const std::string& path) {
  const json document = parse_json_object(text, path);
  const JsonFields fields(document, path);
  if (fields.text("format") != kKind) fields.fail("format", fmt::format("\"{}\"", kKind));
  if (fields.required_count("version") != kVersion) fields.refuse("version");
  KvCalibration calibration{.num_kv_heads = fields.required_count("num_kv_heads"),
                            .head_dim = fields.required_count("head_dim"),
                            .tokens = fields.count("tokens", 0).value_or(0),
                            .layers = {}};
  if (calibration.head_dim > quant::kKvMaxHeadDim) {
    fields.fail("head_dim", fmt::format("at most {}", quant::kKvMaxHeadDim));
  }
  const json* layers = fields.find("layers");
  if (layers == nullptr || !layers->is_array() || layers->empty() || layers->size() > kMaxLayers) {
    fields.fail("layers", fmt::format("an array with an object for each of 1 to {} layers", kMaxLayers));
  }
  const std::size_t channels = std::size_t{calibration.num_kv_heads} * calibration.head_dim;
  for (std::size_t i = 0; i < layers->size(); ++i) {
    const json& layer = (*layers)[i];
    if (!layer.is_object()) fields.fail("layers", fmt::format("an object as element {}", i));
    calibration.layers.push_back(read_layer(JsonFields(layer, path, fmt::format("layers[{}].", i)),
                                            calibration.num_kv_heads, channels));
  }
  return calibration;
}

std::string to_json(const KvCalibration& calibration) {
  ordered_json document{{"format", kKind},
                        {"version", kVersion},
                        {"num_kv_heads", calibration.num_kv_heads},
                        {"head_dim", calibration.head_dim},
                        {"tokens", calibration.tokens},
                        {"layers", ordered_json::array()}};
  for (const KvLayerCalibration& layer : calibration.layers) {
    ordered_json entry{{"k_range", layer.k_range}, {"v_range", layer.v_range}};
    if (!layer.k_mean.empty()) entry["k_mean"] = layer.k_mean;
    if (!layer.k_equaliser.empty()) entry["k_equaliser"] = layer.k_equaliser;
    if (!layer.v_equaliser.empty()) entry["v_equaliser"] = layer.v_equaliser;
    if (layer.dtype) entry["kv_dtype"] = quant::to_string(*layer.dtype);
    if (layer.high_precision) entry["high_precision"] = true;
    document["layers"].push_back(std::move(entry));
  }
  return document.dump() + "\n";
}

KvCalibration read_kv_calibration(const std::string& path) {
  return parse_kv_calibration(read_text_file(path, kMaxFileBytes), path);
}

std::vector<quant::KvDtype> resolve_kv_dtypes(std::uint32_t num_layers, std::optional<quant::KvDtype> dtype,
                                              const KvHighPrecision& high_precision,
                                              const KvCalibration* calibration) {
  const auto layer_of = [&](std::uint32_t layer, const char* wish) -> const KvLayerCalibration& {
    if (calibration == nullptr) throw InvalidArgument(fmt::format("{}: it needs a KV calibration", wish));
    return calibration->layers.at(layer);
  };
  if (high_precision.calibrated && calibration != nullptr && !has_budget(*calibration)) {
    throw InvalidArgument(
        "high-precision layers are to be as calibrated, and the KV calibration measured no layer's cost: "
        "make it "
        "with `metrale calibrate --budget`");
  }
  std::vector<quant::KvDtype> dtypes;
  for (std::uint32_t i = 0; i < num_layers; ++i) {
    if (dtype) {
      dtypes.push_back(*dtype);
    } else {
      const auto chosen = layer_of(i, "the KV dtype is to be as calibrated").dtype;
      if (!chosen) {
        throw InvalidArgument(fmt::format(
            "the KV calibration names no format for layer {}: make it with `metrale calibrate --budget`", i));
      }
      dtypes.push_back(*chosen);
    }
    const bool is_boundary =
        i < high_precision.boundary_layers || num_layers - i <= high_precision.boundary_layers;
    const bool is_marked = high_precision.calibrated &&
                           layer_of(i, "high-precision layers are to be as calibrated").high_precision;
    if (is_boundary || is_marked) dtypes.back() = {};
  }
  return dtypes;
}

bool needs_kv_scales(std::span<const quant::KvDtype> layers) {
  return std::ranges::any_of(layers, [](quant::KvDtype dtype) {
    return quant::kv_format_info(dtype.k).scaled || quant::kv_format_info(dtype.v).scaled;
  });
}

double mean_kv_bits(std::span<const quant::KvDtype> layers, std::uint32_t head_dim) {
  double bytes = 0;
  for (const quant::KvDtype dtype : layers) {
    for (const KvFormat format : {dtype.k, dtype.v}) {
      bytes += static_cast<double>(quant::kv_row_bytes(format, head_dim) +
                                   quant::kv_header_bytes(format, head_dim));
    }
  }
  return bytes * 8 / (2.0 * head_dim * static_cast<double>(layers.size()));
}

}  // namespace metrale::engine
