// SPDX-License-Identifier: Apache-2.0
// The figures of a replay, as JSON and as text. docs/replay.md has the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <metrale/base/metrics.h>

#include "record.h"
#include "replayer.h"
#include "trace.h"

namespace metrale::replay {

// By nearest rank: p90 is the smallest value that 90 % of them do not exceed. All 0 where there are none.
struct Percentiles {
  std::size_t count = 0;
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};
[[nodiscard]] Percentiles percentiles(std::vector<double> values);

// What the figures hold for.
struct Conditions {
  std::string model;
  std::string trace;
  std::string note;  // of the trace
  double speed = 1;  // 0: nobody waited for a time
  std::string device;
  std::string compute;
  std::string kv_dtype;
  gpu::EngineLimits limits;
  std::uint32_t kv_blocks = 0;
  bool prefix_caching = true;
  bool fast = false;
};

struct Summary {
  std::uint64_t requests = 0;   // of the trace
  std::uint64_t submitted = 0;  // and ended
  std::uint64_t finished = 0;   // with every token that was asked for
  std::uint64_t cancelled = 0;
  std::uint64_t timed_out = 0;
  std::uint64_t without_logits = 0;
  std::uint64_t prompt_tokens = 0;  // of submitted requests
  std::uint64_t cached_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::uint64_t requests_with_hits = 0;
  std::uint64_t started = 0;  // requests that came to their first step
  std::uint64_t preemptions = 0;
  double wall_seconds = 0;
  Percentiles ttft;         // due to first token; seconds, as all of these
  Percentiles inter_token;  // of every token but the first of an answer
  Percentiles queue;        // due to first step
  Percentiles end_to_end;   // due to end, of finished requests

  [[nodiscard]] double token_hit_rate() const;
  [[nodiscard]] double request_hit_rate() const;
};
[[nodiscard]] Summary summarize(const ReplayRecord& record);

// Everything that a report is made of.
struct Report {
  const Conditions* conditions = nullptr;
  const Trace* trace = nullptr;
  const ReplayRecord* record = nullptr;
  Summary summary;
  std::vector<MetricFamily> metrics;  // of the engine, at the end of the replay
  std::optional<Verification> verification;
};
// One JSON object, indented, with the newline.
[[nodiscard]] std::string to_json(const Report& report);
// Several lines.
[[nodiscard]] std::string to_text(const Report& report);
// "finished", "cancelled", … of a request: what its answers ended with, the least happy of them; "running"
// where it did not end and "waiting" where it never came to it.
[[nodiscard]] std::string_view outcome(const RequestRecord& record);

}  // namespace metrale::replay
