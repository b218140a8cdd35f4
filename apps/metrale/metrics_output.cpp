// SPDX-License-Identifier: Apache-2.0
#include "metrics_output.h"

#include <cstdio>

#include <fmt/format.h>

namespace metrale::app {

void add_metrics_flags(CLI::App& command, MetricsFlags& flags) {
  CLI::Option* const port =
      command
          .add_option("--metrics-port", flags.port,
                      "Serve metrics for Prometheus at this port while the command runs (0: any free one)")
          ->check(CLI::Range(0, 65535));
  command.add_option("--metrics-address", flags.address, "IPv4 address at which --metrics-port listens")
      ->needs(port)
      ->capture_default_str();
}

std::unique_ptr<MetricsServer> serve_metrics(const MetricsFlags& flags, const MetricsRegistry& metrics) {
  if (!flags.port) return nullptr;
  auto server = std::make_unique<MetricsServer>(metrics, flags.address, *flags.port);
  std::fputs(fmt::format("metrics: http://{}:{}/metrics\n", flags.address, server->port()).c_str(), stderr);
  return server;
}

}  // namespace metrale::app
