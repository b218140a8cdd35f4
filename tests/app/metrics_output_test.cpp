// SPDX-License-Identifier: Apache-2.0
#include "metrics_output.h"

#include <array>
#include <limits>

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/base/metrics.h>

#include "metrics_json.h"

namespace metrale::app {
namespace {

TEST(MetricsJson, HasEveryFamilyInOrder) {
  MetricsRegistry metrics;
  metrics.counter("reads_total", "Reads", {{"from", "disk"}}).add(3);
  metrics.counter("reads_total", "Reads", {{"from", "peer"}});
  metrics.gauge("queue_bytes", "Bytes that wait").set(1.5);
  Histogram& wait = metrics.histogram("wait_seconds", "Wait", std::array{0.1, 1.0});
  for (const double value : {0.125, 0.5, 4.0}) wait.observe(value);

  EXPECT_EQ(to_json(metrics.snapshot()).dump(),
            R"({"queue_bytes":{"type":"gauge","samples":[{"labels":{},"value":1.5}]},)"
            R"("reads_total":{"type":"counter","samples":[{"labels":{"from":"disk"},"value":3},)"
            R"({"labels":{"from":"peer"},"value":0}]},)"
            R"("wait_seconds":{"type":"histogram","samples":[{"labels":{},"count":3,"sum":4.625,)"
            R"("bounds":[0.1,1.0],"counts":[0,2,1]}]}})");
}

TEST(MetricsJson, NothingIsAnEmptyObject) {
  EXPECT_EQ(to_json({}).dump(), "{}");
}

TEST(MetricsJson, NanIsNull) {
  MetricsRegistry metrics;
  metrics.gauge("ratio", "Ratio").set(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(to_json(metrics.snapshot()).dump(),
            R"({"ratio":{"type":"gauge","samples":[{"labels":{},"value":null}]}})");
}

struct MetricsFlagsTest : testing::Test {
  MetricsFlagsTest() { add_metrics_flags(command, flags); }
  void parse(const std::string& line) { command.parse(line); }

  CLI::App command;
  MetricsFlags flags;
};

TEST_F(MetricsFlagsTest, NoneIsNoServer) {
  parse("");
  EXPECT_EQ(flags.port, std::nullopt);
  EXPECT_EQ(serve_metrics(flags, MetricsRegistry{}), nullptr);
}

TEST_F(MetricsFlagsTest, PortAloneIsLoopback) {
  parse("--metrics-port 65535");
  EXPECT_EQ(flags.port, 65535);
  EXPECT_EQ(flags.address, "127.0.0.1");
}

TEST_F(MetricsFlagsTest, AddressComesWithAPort) {
  parse("--metrics-port 0 --metrics-address 0.0.0.0");
  EXPECT_EQ(flags.address, "0.0.0.0");
  EXPECT_THROW(parse("--metrics-address 0.0.0.0"), CLI::ParseError);
}

TEST_F(MetricsFlagsTest, PortsThatAreNoneAreRefused) {
  for (const char* port : {"65536", "-1", "http", "4294967296"}) {
    EXPECT_THROW(parse(std::string("--metrics-port ") + port), CLI::ParseError) << port;
  }
}

}  // namespace
}  // namespace metrale::app
