// SPDX-License-Identifier: Apache-2.0
// Steps of an engine in which host memory runs out, at one allocation after the other.
#include <new>
#include <support/failing_new.h>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gtest/gtest.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

struct Seen {
  int failures = 0;
  int tokens = 0;
  bool ended = false;
};

// Steps until the request is over, or the engine says that it has lost its place.
Seen step_through(engine::Engine& engine, int failing) {
  Seen seen;
  allocations_left = failing;
  for (int steps = 0; steps < 100 && !engine.idle(); ++steps) {
    try {
      for (const engine::StepEvent& event : engine.step()) {
        seen.tokens += event.token ? 1 : 0;
        seen.ended = seen.ended || event.request_finished;
      }
    } catch (const std::bad_alloc&) {
      ++seen.failures;
    }
    if (allocations_left == 0) allocations_left = -1;  // it was that one alone
  }
  allocations_left = -1;
  return seen;
}

TEST(EngineAllocationFailure, EndsTheRequestOrSaysAtEveryStepThatItCannot) {
  TempDir dir;
  write_tiny_model(tiny_model("tiny_base"), dir.path());
  engine::EngineOptions options;
  options.max_seq_len = 64;
  options.max_batch_size = 4;
  options.max_batch_tokens = 64;
  options.prefix_caching = true;
  int goes_on = 0;
  int lost = 0;
  for (int failing = 0;; failing += failing < 60 ? 1 : 11) {
    EngineHarness harness(dir.path(), options);
    engine::Request request{.prompt = Tokens(20, 7), .max_new_tokens = 3, .ignore_eos = true, .n = 3};
    request.sampling.temperature = 1;
    harness.engine().submit(request);

    const Seen seen = step_through(harness.engine(), failing);

    if (seen.failures == 0) {
      EXPECT_EQ(seen.tokens, 9);
      break;
    }
    if (harness.engine().idle()) {
      EXPECT_EQ(seen.tokens, 9) << "allocation " << failing;
      EXPECT_TRUE(seen.ended) << "allocation " << failing;
      ++goes_on;
    } else {
      EXPECT_EQ(seen.failures, 100 - seen.tokens / 3)
          << "allocation " << failing << ": it went on without an end";
      EXPECT_THROW((void)harness.engine().step(), std::bad_alloc);
      ++lost;
    }
  }
  EXPECT_GT(goes_on + lost, 20);
}

}  // namespace
}  // namespace metrale::test
