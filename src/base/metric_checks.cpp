// SPDX-License-Identifier: Apache-2.0
#include "base/metric_checks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale {
namespace {

[[noreturn]] void refuse(std::string_view who, std::string_view problem) {
  throw InvalidArgument(fmt::format("{}: {}", who, problem));
}

// Not isalpha: what that takes for a letter depends on the locale.
bool is_name(std::string_view name, bool colons) {
  const auto starts = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colons && c == ':');
  };
  const auto goes_on = [&](char c) { return starts(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && starts(name.front()) && std::all_of(name.begin(), name.end(), goes_on);
}

// The bytes of the character that begins here, 0 where none does (RFC 3629, section 4).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto within = [&](std::size_t i, unsigned low, unsigned high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const auto goes_on = [&](std::size_t i) { return within(i, 0x80, 0xBF); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (within(0, 0xC2, 0xDF)) return goes_on(1) ? 2 : 0;
  if (within(0, 0xE0, 0xEF)) {
    return within(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && goes_on(2) ? 3 : 0;
  }
  if (within(0, 0xF0, 0xF4)) {
    const bool second = within(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF);
    return second && goes_on(2) && goes_on(3) ? 4 : 0;
  }
  return 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace

void check_metric_name(std::string_view who, std::string_view name, MetricType type) {
  if (!is_name(name, true)) refuse(who, "a metric's name is [a-zA-Z_:][a-zA-Z0-9_:]*");
  for (const std::string_view end : {"_bucket", "_sum", "_count"}) {
    if (name.ends_with(end)) refuse(who, fmt::format("{} belongs to the series of histograms", end));
  }
  if (name.ends_with("_total") != (type == MetricType::kCounter)) {
    refuse(who, "_total ends the names of counters, and of counters only");
  }
}

void check_metric_help(std::string_view who, std::string_view help) {
  const bool one_line =
      std::all_of(help.begin(), help.end(), [](char c) { return static_cast<unsigned char>(c) >= ' '; });
  if (help.empty() || !one_line || !is_utf8(help)) refuse(who, "the help is one line of text");
}

void check_histogram_bounds(std::string_view who, std::span<const double> bounds) {
  if (bounds.empty()) refuse(who, "there are no bounds");
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (!std::isfinite(bounds[i])) {
      refuse(who,
             fmt::format("bound {} is {}; the bucket up to infinity is there without one", i, bounds[i]));
    }
    if (i > 0 && bounds[i] <= bounds[i - 1]) {
      refuse(who, fmt::format("the bounds must rise, but {} follows {}", bounds[i], bounds[i - 1]));
    }
  }
}

void check_metric_labels(std::string_view who, const MetricLabels& labels) {
  std::string_view before;
  for (const auto& [name, value] : labels) {
    if (!is_name(name, false)) {
      refuse(who, fmt::format("'{}' is no label name, [a-zA-Z_][a-zA-Z0-9_]*", name));
    }
    if (name == "le" || name.starts_with("__")) {
      refuse(who, fmt::format("Prometheus keeps the label name '{}' for itself", name));
    }
    if (name == before) refuse(who, fmt::format("the label '{}' is there twice", name));
    if (!is_utf8(value)) refuse(who, fmt::format("the value of label '{}' is not UTF-8", name));
    before = name;
  }
}

}  // namespace metrale
