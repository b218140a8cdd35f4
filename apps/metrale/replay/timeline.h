// SPDX-License-Identifier: Apache-2.0
// The timeline of a replay as one HTML file that needs nothing else: a lane a request, and the engine's load
// over time.
#pragma once

#include <string>

#include "summary.h"

namespace metrale::replay {

// More requests than this are thinned out evenly; the page says so.
inline constexpr std::size_t kMostLanes = 2000;

[[nodiscard]] std::string timeline_html(const Report& report);

}  // namespace metrale::replay
