// SPDX-License-Identifier: Apache-2.0
// What a metric may be called and labelled. Each check throws InvalidArgument, which begins with `who`.
#pragma once

#include <span>
#include <string_view>

#include <metrale/base/metrics.h>

namespace metrale {

void check_metric_name(std::string_view who, std::string_view name, MetricType type);
void check_metric_help(std::string_view who, std::string_view help);
void check_histogram_bounds(std::string_view who, std::span<const double> bounds);
// `labels` are in the order of their names.
void check_metric_labels(std::string_view who, const MetricLabels& labels);

}  // namespace metrale
