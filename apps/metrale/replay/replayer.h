// SPDX-License-Identifier: Apache-2.0
// Replays a trace on an engine, and computes its answers again for comparison.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <metrale/base/clock.h>
#include <metrale/engine/engine.h>

#include "record.h"
#include "trace.h"

namespace metrale::replay {

struct ReplayProgress {
  std::size_t ended = 0;
  std::size_t total = 0;
  std::size_t running = 0;  // sequences
  std::size_t waiting = 0;
};

struct ReplayOptions {
  double speed = 1;                     // times of the trace are divided by it; 0: nobody waits for a time
  std::function<bool()> interrupted{};  // asked before every step; then everything is cancelled
  std::function<void(const ReplayProgress&)> progress{};
};

// Blocking. `clock` is the engine's. Requests that are submitted late, because a step was under way, count
// from when they were due. Throws what the engine does.
[[nodiscard]] ReplayRecord replay(engine::Engine& engine, const Clock& clock, const Trace& trace,
                                  const ReplayOptions& options);

struct Verification {
  std::uint64_t answers = 0;
  std::uint64_t tokens = 0;
  std::uint64_t different_answers = 0;
  std::string first_difference;  // in words; empty where there is none
};

// Computes every answer of a replay once more, each by itself, and compares its tokens. Blocking. Throws
// Cancelled where `options.interrupted` says so.
[[nodiscard]] Verification verify(engine::Engine& engine, const Trace& trace, const ReplayRecord& record,
                                  const ReplayOptions& options);

}  // namespace metrale::replay
