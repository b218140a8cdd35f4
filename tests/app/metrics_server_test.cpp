// SPDX-License-Identifier: Apache-2.0
// The metrics page as a scraper fetches it.
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <netinet/in.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/time.h>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>
#include <metrale/base/metrics.h>

#include "metrics_output.h"

namespace metrale::app {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

UniqueFd connect_to(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.is_open() && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fd.reset();
  }
  return fd;
}

// The whole response, head and body.
std::string get(std::uint16_t port, const std::string& path) {
  const UniqueFd fd = connect_to(port);
  if (!fd.is_open()) throw std::runtime_error("nobody listens");
  const timeval patience{.tv_sec = 10, .tv_usec = 0};  // then the response is what came by then
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const std::string request = fmt::format("GET {} HTTP/1.0\r\n\r\n", path);
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) throw std::runtime_error("send");
  std::string response;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = ::recv(fd.get(), part.data(), part.size(), 0)) > 0;) {
    response.append(part.data(), static_cast<std::size_t>(got));
  }
  return response;
}

// The page from the program's own metrics on; those that the library keeps of itself stand before them.
std::string own_part(const std::string& response) {
  const std::size_t begin = response.find("# HELP test_");
  return begin == std::string::npos ? "" : response.substr(begin);
}

TEST(MetricsServer, ServesTheRegistryAsPrometheusText) {
  MetricsRegistry metrics;
  metrics.counter("test_reads_total", "Reads", {{"how", "direct"}, {"from", "disk"}}).add(3);
  metrics.counter("test_reads_total", "Reads", {{"how", "direct"}, {"from", "a \"b\"\\c\nd"}});
  metrics.gauge("test_queue_bytes", R"(A \ in a help)").set(-1.5);
  Histogram& wait = metrics.histogram("test_wait_seconds", "Wait", std::array{0.005, 0.1, 1.0});
  for (const double value : {0.005, 0.0625, 0.5, 4.0}) wait.observe(value);
  const MetricsServer server(metrics);

  const std::string response = get(server.port(), "/metrics");

  EXPECT_THAT(response, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Type: text/plain")));
  EXPECT_EQ(own_part(response), R"(# HELP test_queue_bytes A \\ in a help
# TYPE test_queue_bytes gauge
test_queue_bytes -1.5
# HELP test_reads_total Reads
# TYPE test_reads_total counter
test_reads_total{from="disk",how="direct"} 3
test_reads_total{from="a \"b\"\\c\nd",how="direct"} 0
# HELP test_wait_seconds Wait
# TYPE test_wait_seconds histogram
test_wait_seconds_count 4
test_wait_seconds_sum 4.5675
test_wait_seconds_bucket{le="0.005"} 1
test_wait_seconds_bucket{le="0.1"} 2
test_wait_seconds_bucket{le="1"} 3
test_wait_seconds_bucket{le="+Inf"} 4
)");
}

TEST(MetricsServer, EveryFetchSeesTheValuesOfItsMoment) {
  MetricsRegistry metrics;
  Counter& steps = metrics.counter("test_steps_total", "Steps");
  const MetricsServer server(metrics);
  EXPECT_THAT(get(server.port(), "/metrics"), HasSubstr("\ntest_steps_total 0\n"));

  steps.add(2);
  metrics.gauge("test_late", "Came later");

  EXPECT_THAT(get(server.port(), "/metrics"),
              AllOf(HasSubstr("\ntest_steps_total 2\n"), HasSubstr("\ntest_late 0\n")));
}

TEST(MetricsServer, ServesNothingElse) {
  const MetricsRegistry metrics;
  const MetricsServer server(metrics);
  EXPECT_THAT(get(server.port(), "/"), StartsWith("HTTP/1.0 404"));
  EXPECT_THAT(get(server.port(), "/etc/passwd"), StartsWith("HTTP/1.0 404"));
}

TEST(MetricsServer, ConnectionsThatAskForNothingHoldUpAScrapeForSecondsAtMost) {
  const MetricsRegistry metrics;
  const MetricsServer server(metrics);
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 50; ++i) {
    idle.push_back(connect_to(server.port()));
    static_cast<void>(::send(idle.back().get(), "GET /me", 7, MSG_NOSIGNAL));
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(get(server.port(), "/metrics"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(6));
}

TEST(MetricsServer, APortThatIsTakenIsNamedWithTheReason) {
  const MetricsRegistry metrics;
  const MetricsServer first(metrics);
  try {
    const MetricsServer second(metrics, "127.0.0.1", first.port());
    FAIL() << "two servers at one port";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("--metrics-port"), HasSubstr(fmt::format("127.0.0.1:{}", first.port())),
                      HasSubstr("Address already in use")));
    EXPECT_EQ(error.error_number(), EADDRINUSE);
  }
}

TEST(MetricsServer, AnAddressOfAnotherHostIsNamedWithTheReason) {
  const MetricsRegistry metrics;
  try {
    const MetricsServer server(metrics, "192.0.2.1");  // RFC 5737: nobody's
    FAIL() << "listens at an address of another host";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("--metrics-port"), HasSubstr("192.0.2.1"), HasSubstr("of this host")));
    EXPECT_EQ(error.error_number(), EADDRNOTAVAIL);
  }
}

TEST(MetricsServer, WhatIsNoAddressIsRefused) {
  const MetricsRegistry metrics;
  for (const char* address : {"", "localhost", "127.0.0.1:80,127.0.0.1", "1.2.3", "::1"}) {
    try {
      const MetricsServer server(metrics, address);
      FAIL() << address;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("--metrics-address"), HasSubstr(address)));
    }
  }
}

TEST(MetricsServer, NobodyListensAfterItsEnd) {
  const MetricsRegistry metrics;
  std::uint16_t port = 0;
  {
    const MetricsServer server(metrics);
    port = server.port();
    EXPECT_TRUE(connect_to(port).is_open());
  }
  EXPECT_FALSE(connect_to(port).is_open());
}

TEST(ServeMetrics, SaysWhereTheMetricsAre) {
  MetricsRegistry metrics;
  metrics.gauge("test_depth", "Depth");
  testing::internal::CaptureStderr();

  const auto server = serve_metrics({.port = 0}, metrics);

  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            fmt::format("metrics: http://127.0.0.1:{}/metrics\n", server->port()));
  EXPECT_THAT(get(server->port(), "/metrics"), HasSubstr("\ntest_depth 0\n"));
}

}  // namespace
}  // namespace metrale::app
