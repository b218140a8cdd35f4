// SPDX-License-Identifier: Apache-2.0
// Metrics served where --metrics-port says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include <metrale/base/metrics.h>

#include "metrics_server.h"

namespace metrale::app {

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
