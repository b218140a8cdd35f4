// SPDX-License-Identifier: Apache-2.0
// A build without prometheus-cpp.
#include <metrale/base/error.h>

#include "metrics_server.h"

namespace metrale::app {

struct MetricsServer::Impl {};

MetricsServer::MetricsServer(const MetricsRegistry&, const std::string&, std::uint16_t) {
  throw Unsupported("this build", "--metrics-port, because it was made without prometheus-cpp");
}

MetricsServer::~MetricsServer() = default;

std::uint16_t MetricsServer::port() const {
  return 0;
}

}  // namespace metrale::app
