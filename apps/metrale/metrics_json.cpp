// SPDX-License-Identifier: Apache-2.0
#include "metrics_json.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace metrale::app {
namespace {

using nlohmann::ordered_json;

const char* name_of(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

ordered_json sample_json(MetricType type, const MetricSample& sample) {
  ordered_json json{{"labels", ordered_json::object()}};
  for (const auto& [name, value] : sample.labels) json["labels"][name] = value;
  if (type == MetricType::kHistogram) {
    const Histogram::Values& values = sample.histogram;
    json.update(
        {{"count", values.count}, {"sum", values.sum}, {"bounds", values.bounds}, {"counts", values.counts}});
  } else if (type == MetricType::kCounter) {
    json["value"] = static_cast<std::uint64_t>(sample.value);
  } else {
    json["value"] = sample.value;
  }
  return json;
}

}  // namespace

ordered_json to_json(const std::vector<MetricFamily>& families) {
  ordered_json json = ordered_json::object();
  for (const MetricFamily& family : families) {
    ordered_json samples = ordered_json::array();
    for (const MetricSample& sample : family.samples) samples.push_back(sample_json(family.type, sample));
    json[family.name] = {{"type", name_of(family.type)}, {"samples", std::move(samples)}};
  }
  return json;
}

}  // namespace metrale::app
