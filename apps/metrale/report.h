// SPDX-License-Identifier: Apache-2.0
// What `metrale generate` says about a finished request and about the run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <metrale/base/metrics.h>
#include <metrale/engine/engine.h>

namespace metrale::app {

struct Answer {
  std::vector<std::int32_t> tokens;
  std::optional<std::string> text;  // absent where the directory has no tokenizer
  std::optional<engine::FinishReason> finished;
  engine::RequestStats stats;
};

struct RunStats {
  double load_seconds = 0;
  double wall_seconds = 0;  // all requests
  std::uint64_t kv_bytes_per_token = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t kv_cache_bytes = 0;
};

// Peak resident memory of this process; 0 where the system does not say.
[[nodiscard]] std::uint64_t peak_memory_bytes();

// One line, with the newline, and with the metrics where there are any.
[[nodiscard]] std::string to_json_line(const Answer& answer, const RunStats& run,
                                       const MetricsRegistry* metrics);
// Several lines for standard error.
[[nodiscard]] std::string stats_text(const std::vector<Answer>& answers, const RunStats& run);

}  // namespace metrale::app
