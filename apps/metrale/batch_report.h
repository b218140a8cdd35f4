// SPDX-License-Identifier: Apache-2.0
// What `metrale batch` says about a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <metrale/base/metrics.h>
#include <metrale/engine/engine.h>

namespace metrale::app {

struct BatchTotals {
  std::uint64_t ok = 0;             // results written
  std::uint64_t failed = 0;         // errors written
  std::uint64_t kept = 0;           // lines of the input that an earlier run had done
  std::uint64_t unfinished = 0;     // lines read whose result a signal prevented
  std::uint64_t early = 0;          // of results written: before a line's that a signal prevented
  std::uint64_t prompt_tokens = 0;  // these three of requests that ended
  std::uint64_t cached_tokens = 0;
  std::uint64_t output_tokens = 0;

  [[nodiscard]] double hit_rate() const;
};

struct BatchReport {
  BatchTotals totals;
  std::uint64_t unknown_results = 0;  // in the file, of ids that the input does not have
  std::uint64_t evicted_blocks = 0;
  std::uint64_t preemptions = 0;
  double load_seconds = 0;
  double wall_seconds = 0;  // from the first line to the last
  bool interrupted = false;
  std::vector<MetricFamily> metrics;
};

// Several lines for standard error.
[[nodiscard]] std::string to_text(const BatchReport& report);
// One line, newline included.
[[nodiscard]] std::string to_json_line(const BatchReport& report);

}  // namespace metrale::app
