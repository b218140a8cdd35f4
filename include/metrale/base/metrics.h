// SPDX-License-Identifier: Apache-2.0
// Metrics: counters, gauges and histograms that a program's parts write and its operators read. A registry
// belongs to whoever runs the program; nothing is global. Writing is lock-free and may be done from any
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace metrale {

// Only grows.
class Counter {
 public:
  void add(std::uint64_t count = 1) noexcept { value_.fetch_add(count, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Any number, NaN and infinities too.
class Gauge {
 public:
  void set(double value) noexcept { value_.store(value, std::memory_order_relaxed); }
  [[nodiscard]] double value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// How often observed values fell at or below each bound.
class Histogram {
 public:
  // Throws InvalidArgument where there is no bound, or the bounds do not rise or are not finite.
  explicit Histogram(std::span<const double> bounds);
  // NaN and infinities are not counted: one of them would spoil the sum for good.
  void observe(double value) noexcept;

  struct Values {
    std::vector<double> bounds;         // upper, inclusive; without the last, infinity
    std::vector<std::uint64_t> counts;  // of each bucket by itself: one more than bounds
    std::uint64_t count = 0;            // the sum of counts
    double sum = 0;                     // of the observed values
  };
  // While others observe, a value may be counted already and not yet be in the sum, or the reverse.
  [[nodiscard]] Values values() const;

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

using MetricLabels = std::vector<std::pair<std::string, std::string>>;  // name, value

enum class MetricType : std::uint8_t { kCounter, kGauge, kHistogram };

struct MetricSample {
  MetricLabels labels;          // in the order of their names
  double value = 0;             // of counters and gauges
  Histogram::Values histogram;  // of histograms
};

struct MetricFamily {
  std::string name;
  std::string help;
  MetricType type = MetricType::kCounter;
  std::vector<MetricSample> samples;
};

// Thread-safe. Metrics live as long as the registry; asking for one again gives the same one. Asking takes a
// lock and a search, so keep the reference.
class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // `name` as Prometheus has it: `[a-zA-Z_:][a-zA-Z0-9_:]*`, with the unit at its end; `_total` ends the
  // names of counters and of nothing else, and `_bucket`, `_sum` and `_count` end none. `help` is one line. A
  // label's name is `[a-zA-Z_][a-zA-Z0-9_]*`, not `le` and without `__` before it; its value is UTF-8; their
  // order does not matter. Throws InvalidArgument, naming the metric, for anything else, and for a name that
  // is there with another type, help, bounds or label names.
  Counter& counter(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  // The bounds as those of Histogram.
  Histogram& histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                       const MetricLabels& labels = {});

  // Families in the order of their names, samples in that of their first use.
  [[nodiscard]] std::vector<MetricFamily> snapshot() const;

 private:
  struct Metric;
  struct Family;
  struct Request;
  Metric& find_or_add(const Request& request);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Family>> families_;  // in the order of their names
};

}  // namespace metrale
