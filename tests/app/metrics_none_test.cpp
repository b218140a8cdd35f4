// SPDX-License-Identifier: Apache-2.0
// A build without prometheus-cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/base/metrics.h>

#include "metrics_output.h"

namespace metrale::app {
namespace {

TEST(MetricsWithoutALibrary, PortIsRefusedAndSaysWhy) {
  const MetricsRegistry metrics;
  try {
    const auto server = serve_metrics({.port = 0}, metrics);
    FAIL() << "nothing was refused";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("--metrics-port"), testing::HasSubstr("prometheus-cpp")));
  }
}

TEST(MetricsWithoutALibrary, NoPortIsNoServer) {
  const MetricsRegistry metrics;
  EXPECT_EQ(serve_metrics({}, metrics), nullptr);
}

}  // namespace
}  // namespace metrale::app
