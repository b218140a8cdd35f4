// SPDX-License-Identifier: Apache-2.0
// What an engine writes into a registry; docs/metrics.md describes each.
#pragma once

#include <array>

#include <metrale/base/metrics.h>
#include <metrale/engine/engine.h>

namespace metrale::engine {

struct Engine::Metrics {
  explicit Metrics(MetricsRegistry& registry);

  // After a step: `counts` as they are, and what the step took.
  void update(const EngineCounts& counts, double step_seconds, std::size_t step_tokens);
  [[nodiscard]] Counter& requests(FinishReason outcome) {
    return *finished[static_cast<std::size_t>(outcome)];
  }

  std::array<Counter*, 5> finished;  // answers, by FinishReason
  Counter& prompt_tokens;
  Counter& generated_tokens;
  Counter& lookup_tokens;
  Counter& hit_tokens;
  Counter& preemptions;
  Counter& evicted_blocks;
  Gauge& running;
  Gauge& waiting;
  Gauge& free_blocks;
  Gauge& cached_blocks;
  Gauge& held_blocks;
  Histogram& ttft;
  Histogram& inter_token;
  Histogram& queue;
  Histogram& step_time;
  Histogram& step_size;

 private:
  EngineCounts last_;
};

}  // namespace metrale::engine
