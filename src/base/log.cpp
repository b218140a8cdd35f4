// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <spdlog/sinks/stdout_color_sinks.h>

#include <metrale/base/log.h>

namespace metrale {

spdlog::logger& log() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made =
        std::make_shared<spdlog::logger>("metrale", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("metrale: %^%l%$: %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *logger;
}

}  // namespace metrale
