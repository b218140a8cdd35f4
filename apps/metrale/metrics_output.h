// SPDX-License-Identifier: Apache-2.0
// The ways that metrics leave the program: as JSON, and served where --metrics-port says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include <metrale/base/metrics.h>

#include "metrics_server.h"

namespace metrale::app {

// {"NAME": {"type": "counter", "samples": [{"labels": {…}, "value": 3}]}, …} in the order of `families`; a
// histogram's sample has count, sum, bounds and counts in place of the value. docs/metrics.md has the whole.
[[nodiscard]] nlohmann::ordered_json to_json(const std::vector<MetricFamily>& families);

struct MetricsFlags {
  std::optional<std::uint16_t> port;
  std::string address = kLoopback;
};
void add_metrics_flags(CLI::App& command, MetricsFlags& flags);

// Null without a port; else says on standard error where the metrics are. The registry outlives what is
// returned. Throws as MetricsServer does.
[[nodiscard]] std::unique_ptr<MetricsServer> serve_metrics(const MetricsFlags& flags,
                                                           const MetricsRegistry& metrics);

}  // namespace metrale::app
