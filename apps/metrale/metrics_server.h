// SPDX-License-Identifier: Apache-2.0
// MetricsServer: GET /metrics in Prometheus's text format, by prometheus-cpp, where the build found it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <metrale/base/metrics.h>

namespace metrale::app {

inline constexpr const char* kLoopback = "127.0.0.1";

class MetricsServer {
 public:
  // Serves from threads of its own until it is destroyed; the registry outlives it. Port 0 is any free one.
  // Throws InvalidArgument where the address is not an IPv4 address, IoError where it cannot listen there,
  // Unsupported where the build has no prometheus-cpp; each names the flag.
  explicit MetricsServer(const MetricsRegistry& metrics, const std::string& address = kLoopback,
                         std::uint16_t port = 0);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  [[nodiscard]] std::uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace metrale::app
