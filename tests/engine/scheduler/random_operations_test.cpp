// SPDX-License-Identifier: Apache-2.0
// Random requests, forks, ends, cancellations, evictions, failed steps and preemptions on a pool that is too
// small. The simulated device checks every byte that a step reads, check_invariants() every block.
#include <algorithm>

#include <gtest/gtest.h>

#include "engine/scheduler/shelf.h"
#include "engine/scheduler/simulator.h"

namespace metrale::engine::test {
namespace {

struct RandomCase {
  const char* name;
  SimulatorOptions options;
  bool has_store = false;
};

class SchedulerRandom : public testing::TestWithParam<RandomCase> {
 protected:
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random() % bound); }

  // Prompts of few kinds, so that they share beginnings and leave each other inside blocks.
  Tokens prompt() {
    const std::size_t shared = below(5) * 13;
    Tokens tokens = counting(static_cast<std::int32_t>(below(3)) * 1000, shared);
    const std::size_t own = 1 + below(40);
    const auto kind = static_cast<std::int32_t>(5000 + below(4) * 100);
    for (std::size_t i = 0; i < own; ++i) tokens.push_back(kind + static_cast<std::int32_t>(i));
    return tokens;
  }

  std::mt19937_64 random;
};

TEST_P(SchedulerRandom, EveryStepReadsItsOwnPastAndNothingIsLost) {
  constexpr int kSteps = 60'000;
  const std::uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  random.seed(seed);
  Shelf shelf;
  SimulatorOptions options = GetParam().options;
  if (GetParam().has_store) options.preempted = &shelf;
  Simulator sim(options);
  shelf.sim = &sim;
  std::vector<SequenceId> live;
  const auto drop = [&](SequenceId id) {
    sim.remove(id);
    std::erase(live, id);
  };
  for (int step = 0; step < kSteps && !HasFailure(); ++step) {
    while (live.size() < 12 && below(3) != 0) {
      const Tokens tokens = prompt();
      live.push_back(sim.add(tokens, static_cast<std::uint32_t>(tokens.size()) + below(30) + 1,
                             static_cast<std::int32_t>(below(3)), below(4) == 0 ? "b" : "a"));
    }
    if (below(20) == 0 && !live.empty()) drop(live[below(static_cast<std::uint32_t>(live.size()))]);
    if (below(50) == 0) (void)sim.scheduler().evict(below(10));
    shelf.saves = below(4) != 0;
    shelf.restores = below(4) != 0;
    if (below(30) == 0) {
      sim.carry_out(sim.scheduler().plan());  // and then it fails
      sim.scheduler().abandon();
    }
    for (const SequenceId id : sim.step()) {
      const auto length = static_cast<std::uint32_t>(sim.scheduler().tokens(id).size());
      if (below(8) == 0 && live.size() < 12) {
        const SequenceId other = sim.fork(id);
        if (length < GetParam().options.max_seq_len && below(4) != 0) {
          live.push_back(other);
        } else {
          sim.remove(other);
        }
      }
      bool over = below(15) == 0;
      if (!over) {
        try {
          sim.scheduler().append(id, static_cast<std::int32_t>(below(3)));
        } catch (const InvalidArgument&) {
          over = true;  // its max_tokens
        }
      }
      if (over) drop(id);
    }
  }
  while (!live.empty()) drop(live.back());
  EXPECT_TRUE(sim.scheduler().idle());
  EXPECT_EQ(sim.scheduler().held_blocks(), 0U);
  EXPECT_EQ(sim.scheduler().check_invariants(), "");
  EXPECT_LE(sim.scheduler().counters().most_overtaken,
            GetParam().options.max_overtakes - 1 + GetParam().options.max_batch_size - 1);
  (void)sim.scheduler().evict(sim.pool().num_blocks());
  EXPECT_EQ(sim.pool().num_free_blocks(), sim.pool().num_blocks());
  EXPECT_GT(sim.scheduler().counters().preempted, 0U);
  EXPECT_EQ(sim.scheduler().counters().restored > 0, GetParam().has_store);
  EXPECT_TRUE(shelf.shelf.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Pools, SchedulerRandom,
    testing::Values(
        RandomCase{"Shared", {.num_blocks = 16, .max_seq_len = 160, .max_batch_size = 6}},
        RandomCase{"Unshared",
                   {.num_blocks = 16, .max_seq_len = 160, .max_batch_size = 6, .prefix_caching = false}},
        RandomCase{"SmallBudget",
                   {.num_blocks = 20, .max_seq_len = 160, .max_batch_size = 8, .max_batch_tokens = 8}},
        RandomCase{"Chunked",
                   {.num_blocks = 24, .max_seq_len = 160, .max_batch_size = 8, .max_prompt_chunk = 7}},
        RandomCase{"Stored", {.num_blocks = 16, .max_seq_len = 160, .max_batch_size = 6}, true},
        RandomCase{"StoredUnshared",
                   {.num_blocks = 16, .max_seq_len = 160, .max_batch_size = 6, .prefix_caching = false},
                   true}),
    [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace metrale::engine::test
