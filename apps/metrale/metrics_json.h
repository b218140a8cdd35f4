// SPDX-License-Identifier: Apache-2.0
// Metrics as JSON: the member "metrics" of what the commands print with --json.
#pragma once

#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <metrale/base/metrics.h>

namespace metrale::app {

// {"NAME": {"type": "counter", "samples": [{"labels": {…}, "value": 3}]}, …} in the order of `families`; a
// histogram's sample has count, sum, bounds and counts in place of the value. docs/metrics.md has the whole.
[[nodiscard]] nlohmann::ordered_json to_json(const std::vector<MetricFamily>& families);

}  // namespace metrale::app
