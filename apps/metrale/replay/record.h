// SPDX-License-Identifier: Apache-2.0
// What a replay saw. Times are from its beginning.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <metrale/base/clock.h>
#include <metrale/engine/engine.h>

#include "trace.h"

namespace metrale::replay {

// One of the answers to a request.
struct AnswerRecord {
  std::vector<std::int32_t> tokens;
  std::vector<Nanoseconds> times;  // when each came
  std::optional<engine::FinishReason> reason;
};

struct RequestRecord {
  std::optional<Nanoseconds> due;  // when it should arrive: latencies count from here; none: never came to it
  std::optional<Nanoseconds> started;      // its first step
  std::optional<Nanoseconds> first_token;  // of any answer
  std::optional<Nanoseconds> ended;        // the last of its answers
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_tokens = 0;
  std::uint32_t preemptions = 0;
  std::vector<AnswerRecord> answers;  // empty until it is submitted: there may be very many in a trace

  [[nodiscard]] std::uint64_t output_tokens() const {
    std::uint64_t sum = 0;
    for (const AnswerRecord& answer : answers) sum += answer.tokens.size();
    return sum;
  }
};

// What the engine was doing after a step.
struct Load {
  Nanoseconds at{0};
  std::size_t waiting = 0;  // sequences
  std::size_t running = 0;
  std::size_t free_blocks = 0;
  std::size_t cached_blocks = 0;
  std::size_t held_blocks = 0;
};

// Loads over time, at most kMost of them: where they get more, every second one goes and from then on only
// every second one is taken.
class LoadCurve {
 public:
  static constexpr std::size_t kMost = 2048;
  void add(const Load& load);
  [[nodiscard]] const std::vector<Load>& points() const { return points_; }

 private:
  std::vector<Load> points_;
  std::uint64_t seen_ = 0;
  std::uint64_t stride_ = 1;
};

struct ReplayRecord {
  std::vector<RequestRecord> requests;  // in the order of the trace
  LoadCurve load;
  Load peak;  // the largest of each by itself; `at` and free_blocks are not used
  std::size_t least_free_blocks = 0;
  std::uint64_t steps = 0;
  Nanoseconds wall{0};
  bool complete = false;  // nothing was interrupted
  engine::EngineCounts counts;
};

// The prompt that a request had, or would have now: with its parents' answers as they came.
[[nodiscard]] std::vector<std::int32_t> prompt_of(const Trace& trace,
                                                  const std::vector<RequestRecord>& records,
                                                  std::size_t request);

}  // namespace metrale::replay
