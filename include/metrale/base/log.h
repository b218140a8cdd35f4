// SPDX-License-Identifier: Apache-2.0
// The library's log: one spdlog logger on standard error, the only global object. Quiet (warnings) by
// default.
#pragma once

#include <spdlog/spdlog.h>

namespace metrale {

// Thread-safe. Users may change its level and sinks before other threads log.
[[nodiscard]] spdlog::logger& log();

}  // namespace metrale
