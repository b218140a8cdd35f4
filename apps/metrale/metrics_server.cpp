// SPDX-License-Identifier: Apache-2.0
#include "metrics_server.h"

#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <exception>
#include <netinet/in.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <stop_token>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>

namespace metrale::app {
namespace {

// The text format knows two escapes in a help; prometheus-cpp writes it as it is, and the registry refuses
// line ends.
std::string escaped_help(const std::string& help) {
  std::string text;
  for (const char c : help) text += c == '\\' ? "\\\\" : std::string(1, c);
  return text;
}

prometheus::MetricType type_of(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric::Histogram cumulative(const Histogram::Values& values) {
  prometheus::ClientMetric::Histogram histogram{
      .sample_count = values.count, .sample_sum = values.sum, .bucket = {}};
  std::uint64_t below = 0;
  // The bucket up to infinity is written from sample_count.
  for (std::size_t i = 0; i < values.bounds.size(); ++i) {
    below += values.counts[i];
    histogram.bucket.push_back({below, values.bounds[i]});
  }
  return histogram;
}

prometheus::ClientMetric converted(MetricType type, const MetricSample& sample) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
  metric.counter.value = sample.value;
  metric.gauge.value = sample.value;
  if (type == MetricType::kHistogram) metric.histogram = cumulative(sample.histogram);
  return metric;
}

class RegistryPage final : public prometheus::Collectable {
 public:
  explicit RegistryPage(const MetricsRegistry& metrics) : metrics_(&metrics) {}

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> page;
    for (const MetricFamily& family : metrics_->snapshot()) {
      page.push_back({family.name, escaped_help(family.help), type_of(family.type), {}});
      for (const MetricSample& sample : family.samples) {
        page.back().metric.push_back(converted(family.type, sample));
      }
    }
    return page;
  }

 private:
  const MetricsRegistry* metrics_;
};

sockaddr_in parse(const std::string& address, std::uint16_t port) {
  sockaddr_in parsed{};
  parsed.sin_family = AF_INET;
  parsed.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &parsed.sin_addr) != 1) {
    throw InvalidArgument(fmt::format(
        "--metrics-address: '{}' is not an IPv4 address such as 127.0.0.1 (this host) or 0.0.0.0 (any)",
        address));
  }
  return parsed;
}

const sockaddr* generic(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// Why nobody can listen there, as an errno value; 0 where one can.
int why_not(const sockaddr_in& address) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (!fd.is_open() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(fd.get(), generic(address), sizeof address) != 0 || ::listen(fd.get(), 1) != 0) {
    return errno;
  }
  return 0;
}

std::string advice(int reason, const char* otherwise) {
  switch (reason) {
    case 0:
      return otherwise;
    case EADDRINUSE:
      return "port 0 takes a free one";
    case EADDRNOTAVAIL:
      return "--metrics-address must be an address of this host";
    default:
      return {};
  }
}

// A connection that asks for nothing holds a thread until its time is over: fifty of them keep a scrape
// waiting for about two seconds.
constexpr const char* kThreads = "16";
constexpr const char* kRequestTimeoutMs = "500";

std::unique_ptr<prometheus::Exposer> listen_at(const std::string& address, std::uint16_t port) {
  const sockaddr_in parsed = parse(address, port);
  const std::string place = fmt::format("{}:{}", address, port);
  try {
    return std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", place, "num_threads", kThreads, "request_timeout_ms", kRequestTimeoutMs});
  } catch (const std::exception& error) {
    // The library says only that something was wrong.
    const int reason = why_not(parsed);
    throw IoError("--metrics-port: cannot listen at", place, reason, 0, advice(reason, error.what()));
  }
}

// The library's thread looks whether it is to end when somebody connects, or else every two seconds: too long
// to wait at the end of a command.
void knock(const sockaddr_in& address) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.is_open()) static_cast<void>(::connect(fd.get(), generic(address), sizeof address));
}

}  // namespace

struct MetricsServer::Impl {
  Impl(const MetricsRegistry& metrics, const std::string& listen_address, std::uint16_t listen_port)
      : page(std::make_shared<RegistryPage>(metrics)),
        exposer(listen_at(listen_address, listen_port)),
        port(static_cast<std::uint16_t>(exposer->GetListeningPorts().at(0))),
        address(parse(listen_address, port)) {
    exposer->RegisterCollectable(page);
  }

  std::shared_ptr<RegistryPage> page;  // the exposer holds it weakly
  std::unique_ptr<prometheus::Exposer> exposer;
  std::uint16_t port;
  sockaddr_in address;
};

MetricsServer::MetricsServer(const MetricsRegistry& metrics, const std::string& address, std::uint16_t port)
    : impl_(std::make_unique<Impl>(metrics, address, port)) {}

MetricsServer::~MetricsServer() {
  try {
    const std::jthread knocking([this](const std::stop_token& done) {
      while (!done.stop_requested()) {
        knock(impl_->address);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    impl_->exposer.reset();
  } catch (const std::system_error&) {
    // Without a thread to spare it ends by itself, only later.
  }
}

std::uint16_t MetricsServer::port() const {
  return impl_->port;
}

}  // namespace metrale::app
