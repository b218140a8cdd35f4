// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <variant>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/metrics.h>

#include "base/metric_checks.h"

namespace metrale {
namespace {

std::vector<double> checked_bounds(std::span<const double> bounds) {
  check_histogram_bounds("histogram", bounds);
  return {bounds.begin(), bounds.end()};
}

MetricLabels in_order(MetricLabels labels) {
  std::sort(labels.begin(), labels.end());
  return labels;
}

bool same_label_names(const MetricLabels& a, const MetricLabels& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& left, const auto& right) { return left.first == right.first; });
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(checked_bounds(bounds)),
      counts_(std::make_unique<std::atomic<std::uint64_t>[]>(bounds.size() + 1)) {}

void Histogram::observe(double value) noexcept {
  if (!std::isfinite(value)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Histogram::Values Histogram::values() const {
  Values values{.bounds = bounds_, .counts = {}, .count = 0, .sum = sum_.load(std::memory_order_relaxed)};
  values.counts.reserve(bounds_.size() + 1);
  for (std::size_t i = 0; i <= bounds_.size(); ++i) {
    values.counts.push_back(counts_[i].load(std::memory_order_relaxed));
    values.count += values.counts.back();
  }
  return values;
}

struct MetricsRegistry::Request {
  std::string_view name;
  std::string_view help;
  MetricType type;
  std::span<const double> bounds;  // of histograms
  MetricLabels labels;             // in the order of their names
};

struct MetricsRegistry::Metric {
  explicit Metric(const Request& request) : labels(request.labels) {
    if (request.type == MetricType::kGauge) value.emplace<Gauge>();
    if (request.type == MetricType::kHistogram) value.emplace<Histogram>(request.bounds);
  }

  [[nodiscard]] MetricSample sample() const {
    MetricSample sample{.labels = labels, .value = 0, .histogram = {}};
    if (const auto* counter = std::get_if<Counter>(&value)) {
      sample.value = static_cast<double>(counter->value());
    } else if (const auto* gauge = std::get_if<Gauge>(&value)) {
      sample.value = gauge->value();
    } else {
      sample.histogram = std::get<Histogram>(value).values();
    }
    return sample;
  }

  MetricLabels labels;
  std::variant<Counter, Gauge, Histogram> value;
};

struct MetricsRegistry::Family {
  // What differs between the family and one more metric that is asked for by its name.
  [[nodiscard]] const char* conflict(const Request& request) const {
    if (type != request.type) return "type";
    if (help != request.help) return "help";
    if (!std::equal(bounds.begin(), bounds.end(), request.bounds.begin(), request.bounds.end())) {
      return "bounds";
    }
    return same_label_names(metrics.front()->labels, request.labels) ? nullptr : "label names";
  }

  std::string name;
  std::string help;
  MetricType type;
  std::vector<double> bounds;
  std::vector<std::unique_ptr<Metric>> metrics;  // at least one
};

MetricsRegistry::MetricsRegistry() = default;
MetricsRegistry::~MetricsRegistry() = default;

MetricsRegistry::Metric& MetricsRegistry::find_or_add(const Request& request) {
  const std::string who = fmt::format("metric '{}'", request.name);
  check_metric_name(who, request.name, request.type);
  check_metric_help(who, request.help);
  check_metric_labels(who, request.labels);
  if (request.type == MetricType::kHistogram) check_histogram_bounds(who, request.bounds);

  const std::scoped_lock lock(mutex_);
  const auto place = std::lower_bound(families_.begin(), families_.end(), request.name,
                                      [](const auto& family, auto name) { return family->name < name; });
  if (place != families_.end() && (*place)->name == request.name) {
    Family& family = **place;
    if (const char* what = family.conflict(request)) {
      throw InvalidArgument(fmt::format("{} is there already with another {}", who, what));
    }
    for (const auto& metric : family.metrics) {
      if (metric->labels == request.labels) return *metric;
    }
    return *family.metrics.emplace_back(std::make_unique<Metric>(request));
  }
  auto family = std::make_unique<Family>(Family{.name = std::string(request.name),
                                                .help = std::string(request.help),
                                                .type = request.type,
                                                .bounds = {request.bounds.begin(), request.bounds.end()},
                                                .metrics = {}});
  Metric& metric = *family->metrics.emplace_back(std::make_unique<Metric>(request));
  families_.insert(place, std::move(family));
  return metric;
}

Counter& MetricsRegistry::counter(std::string_view name, std::string_view help, const MetricLabels& labels) {
  return std::get<Counter>(find_or_add({name, help, MetricType::kCounter, {}, in_order(labels)}).value);
}

Gauge& MetricsRegistry::gauge(std::string_view name, std::string_view help, const MetricLabels& labels) {
  return std::get<Gauge>(find_or_add({name, help, MetricType::kGauge, {}, in_order(labels)}).value);
}

Histogram& MetricsRegistry::histogram(std::string_view name, std::string_view help,
                                      std::span<const double> bounds, const MetricLabels& labels) {
  return std::get<Histogram>(
      find_or_add({name, help, MetricType::kHistogram, bounds, in_order(labels)}).value);
}

std::vector<MetricFamily> MetricsRegistry::snapshot() const {
  const std::scoped_lock lock(mutex_);
  std::vector<MetricFamily> families;
  families.reserve(families_.size());
  for (const auto& family : families_) {
    families.push_back({.name = family->name, .help = family->help, .type = family->type, .samples = {}});
    for (const auto& metric : family->metrics) families.back().samples.push_back(metric->sample());
  }
  return families;
}

}  // namespace metrale
