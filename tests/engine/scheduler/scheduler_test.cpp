// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>

#include "engine/scheduler/shelf.h"
#include "engine/scheduler/simulator.h"

namespace metrale::engine::test {
namespace {

// Steps until the sequence's prompt is computed.
void prefill(Simulator& sim, SequenceId id) {
  for (int i = 0; i < 100; ++i) {
    for (const SequenceId end : sim.step()) {
      if (end == id) return;
    }
  }
  FAIL() << "the prompt was never computed";
}

// Steps on, appending `count` tokens.
void decode(Simulator& sim, SequenceId id, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    sim.scheduler().append(id, static_cast<std::int32_t>(1000 + i));
    prefill(sim, id);
  }
}

TEST(Scheduler, SecondRequestBeginsWhereTheSharedPrefixEnds) {
  Simulator sim;
  Tokens prompt = counting(0, 40);
  const SequenceId first = sim.add(prompt);
  prefill(sim, first);
  sim.remove(first);
  prompt[39] = 999;

  const SequenceId second = sim.add(prompt);
  prefill(sim, second);

  // 32 in full blocks, 7 in the third by copy.
  EXPECT_EQ(sim.scheduler().info(second).cached_tokens, 39U);
  EXPECT_EQ(sim.scheduler().counters().computed_tokens, 41U);
  EXPECT_EQ(sim.scheduler().held_blocks(), 3U);  // the block that was copied from is nobody's any more
}

TEST(Scheduler, CopiesNothingFromABlockThatItNeedsItself) {
  Simulator sim({.num_blocks = 4, .max_seq_len = 64});
  const SequenceId first = sim.add(counting(0, 40));
  prefill(sim, first);
  sim.remove(first);
  Tokens prompt = counting(0, 36);
  prompt.resize(64, 999);

  const SequenceId second = sim.add(prompt);
  prefill(sim, second);

  EXPECT_EQ(sim.scheduler().info(second).cached_tokens, 32U);
}

TEST(Scheduler, RunningRequestsShareWhatOneOfThemHasComputed) {
  Simulator sim({.max_batch_tokens = 32});
  const SequenceId first = sim.add(counting(0, 64));
  (void)sim.step();
  const SequenceId second = sim.add(counting(0, 64));
  prefill(sim, second);
  EXPECT_EQ(sim.scheduler().info(second).cached_tokens, 32U);
  EXPECT_TRUE(sim.scheduler().info(first).running);
}

TEST(Scheduler, BlocksComputedTwiceAtATimeBecomeOne) {
  Simulator sim;
  const SequenceId first = sim.add(counting(0, 32));
  const SequenceId second = sim.add(counting(0, 32));
  (void)sim.step();
  EXPECT_EQ(sim.scheduler().counters().deduplicated_blocks, 2U);
  EXPECT_EQ(sim.scheduler().held_blocks(), 2U);
  decode(sim, first, 3);
  decode(sim, second, 3);
}

TEST(Scheduler, AnswersAreFoundByTheNextTurn) {
  Simulator sim;
  const SequenceId chat = sim.add(counting(0, 20));
  prefill(sim, chat);
  decode(sim, chat, 20);
  Tokens turn(sim.scheduler().tokens(chat).begin(), sim.scheduler().tokens(chat).end());
  sim.remove(chat);
  turn.push_back(77);

  const SequenceId next = sim.add(turn);
  prefill(sim, next);

  EXPECT_EQ(sim.scheduler().info(next).cached_tokens, 40U);
}

TEST(Scheduler, TenantsShareNothing) {
  Simulator sim;
  sim.remove([&] {
    const SequenceId id = sim.add(counting(0, 48), 0, 0, "a");
    prefill(sim, id);
    return id;
  }());
  const SequenceId other = sim.add(counting(0, 48), 0, 0, "b");
  prefill(sim, other);
  EXPECT_EQ(sim.scheduler().info(other).cached_tokens, 0U);
}

TEST(Scheduler, WithoutAPrefixCacheNothingIsKept) {
  Simulator sim({.prefix_caching = false});
  const SequenceId id = sim.add(counting(0, 48));
  prefill(sim, id);
  sim.remove(id);
  EXPECT_EQ(sim.pool().num_free_blocks(), sim.pool().num_blocks());
}

TEST(Scheduler, PromptsAreCutIntoChunksWithinTheBudgetAndDecodingGoesFirst) {
  Simulator sim({.max_batch_tokens = 20, .max_prompt_chunk = 16});
  const SequenceId chat = sim.add(counting(0, 5));
  prefill(sim, chat);
  const SequenceId prompt = sim.add(counting(500, 50));
  sim.scheduler().append(chat, 1);
  const StepPlan& plan = sim.scheduler().plan();
  ASSERT_EQ(plan.items.size(), 2U);
  EXPECT_EQ(plan.items[0].sequence, chat);
  EXPECT_EQ(plan.items[1].sequence, prompt);
  EXPECT_EQ(plan.items[1].tokens.size(), 16U);
  EXPECT_FALSE(plan.items[1].reaches_end);
}

TEST(Scheduler, AbandonedPlanIsMadeAgain) {
  Simulator sim;
  const SequenceId warm = sim.add(counting(0, 30));
  prefill(sim, warm);
  sim.remove(warm);
  const SequenceId id = sim.add(counting(0, 31));
  const std::size_t copies = sim.scheduler().plan().copies.size();
  sim.scheduler().abandon();
  EXPECT_EQ(copies, 1U);
  const StepPlan& again = sim.scheduler().plan();
  EXPECT_EQ(again.copies.size(), 1U);
  EXPECT_FALSE(again.tables.empty());
  prefill(sim, id);
}

TEST(Scheduler, OnlyTheShortfallIsEvicted) {
  Simulator sim({.num_blocks = 8, .max_seq_len = 128});
  const SequenceId old = sim.add(counting(0, 96));
  while (sim.scheduler().counters().computed_tokens < 96) (void)sim.step();
  sim.remove(old);
  ASSERT_EQ(sim.prefixes().cached_blocks(), 6U);

  const SequenceId fresh = sim.add(counting(500, 48));
  prefill(sim, fresh);

  EXPECT_EQ(sim.prefixes().counters().evicted_blocks, 1U);
}

TEST(Scheduler, LastInRankGivesWayWhereMemoryEndsAndComesBack) {
  // Two grow to five blocks each, eight are there.
  Simulator sim({.num_blocks = 8, .max_seq_len = 128});
  const SequenceId first = sim.add(counting(0, 40), 80);
  const SequenceId second = sim.add(counting(500, 40), 80);
  std::map<SequenceId, std::size_t> tokens{{first, 0}, {second, 0}};
  for (int i = 0; i < 400 && !tokens.empty(); ++i) {
    for (const SequenceId end : sim.step()) {
      if (++tokens[end] == 40) {
        sim.remove(end);
        tokens.erase(end);
      } else {
        sim.scheduler().append(end, static_cast<std::int32_t>(2000 + tokens[end]));
      }
    }
    if (tokens.contains(first)) {
      EXPECT_EQ(sim.scheduler().info(first).preemptions, 0U);
    }
  }
  EXPECT_TRUE(tokens.empty());
  EXPECT_GT(sim.scheduler().counters().preempted, 0U);
  EXPECT_EQ(sim.scheduler().held_blocks(), 0U);
}

TEST(Scheduler, HigherPriorityIsAdmittedFirstAndTakesThePlaceOfALowerOne) {
  Simulator sim({.max_batch_size = 1});
  const SequenceId low = sim.add(counting(0, 20), 0, 0);
  prefill(sim, low);
  const SequenceId same = sim.add(counting(300, 20), 0, 0);
  const SequenceId high = sim.add(counting(600, 20), 0, 5);
  sim.scheduler().append(low, 9);

  prefill(sim, high);

  EXPECT_FALSE(sim.scheduler().info(low).running);
  EXPECT_EQ(sim.scheduler().info(low).preemptions, 1U);
  sim.remove(high);
  prefill(sim, low);  // before the one that came after it
  EXPECT_FALSE(sim.scheduler().info(same).running);
}

TEST(Scheduler, NobodyIsOvertakenWithoutEnd) {
  Simulator sim({.max_batch_size = 1, .max_overtakes = 5});
  const SequenceId low = sim.add(counting(0, 20), 0, -1);
  int served = 0;
  for (int i = 0; i < 20; ++i) {
    const SequenceId high = sim.add(counting(100 * (i + 1), 20), 0, 1);
    const auto ends = sim.step();
    ASSERT_EQ(ends.size(), 1U);
    if (ends.front() == low) break;
    EXPECT_EQ(ends.front(), high);
    sim.remove(high);
    ++served;
  }
  EXPECT_EQ(served, 5);
  EXPECT_EQ(sim.scheduler().counters().most_overtaken, 5U);
}

// Every step brings a prompt of a higher priority that takes all of it.
TEST(Scheduler, PromptThatRunsIsNotPassedWithoutEnd) {
  Simulator sim({.max_overtakes = 5});
  const SequenceId low = sim.add(counting(0, 100), 0, -1);
  int served = 0;
  for (int i = 0; i < 100; ++i) {
    (void)sim.add(counting(1000 * (i + 1), 64), 0, 1);
    const auto ends = sim.step();
    if (std::ranges::find(ends, low) != ends.end()) break;
    for (const SequenceId id : ends) {
      sim.remove(id);
      ++served;
    }
  }
  EXPECT_TRUE(sim.scheduler().info(low).running);
  EXPECT_EQ(served, 5);
  EXPECT_EQ(sim.scheduler().counters().most_overtaken, 5U);
}

TEST(Scheduler, ForkSharesFullBlocksAndCopiesThePartialOne) {
  Simulator sim;
  const SequenceId first = sim.add(counting(0, 40));
  prefill(sim, first);
  const SequenceId second = sim.fork(first);
  EXPECT_EQ(sim.scheduler().held_blocks(), 4U);
  sim.scheduler().append(first, 100);
  sim.scheduler().append(second, 200);
  EXPECT_EQ(sim.step().size(), 2U);
  EXPECT_EQ(sim.scheduler().counters().computed_tokens, 42U);
}

TEST(Scheduler, ForkThatGoesAheadOvertakesWhoWaits) {
  Simulator sim({.num_blocks = 8, .max_seq_len = 128});
  const SequenceId first = sim.add(counting(0, 40));
  prefill(sim, first);
  (void)sim.add(counting(500, 120));
  (void)sim.step();
  (void)sim.fork(first);
  EXPECT_EQ(sim.scheduler().num_waiting(), 1U);
  EXPECT_EQ(sim.scheduler().counters().most_overtaken, 1U);
}

TEST(Scheduler, ForkOutlivesWhatItWasForkedFromBeforeItsFirstStep) {
  Simulator sim({.prefix_caching = false});
  const SequenceId first = sim.add(counting(0, 40));
  prefill(sim, first);
  const SequenceId second = sim.fork(first);
  sim.scheduler().append(second, 200);
  sim.remove(first);
  const SequenceId other = sim.add(counting(700, 200));
  prefill(sim, other);
  EXPECT_EQ(sim.scheduler().check_invariants(), "");
}

TEST(Scheduler, ForkWithoutAFreeRowWaitsForOne) {
  Simulator sim({.max_batch_size = 1});
  const SequenceId first = sim.add(counting(0, 40));
  prefill(sim, first);
  const SequenceId second = sim.fork(first);
  EXPECT_FALSE(sim.scheduler().info(second).running);
  sim.scheduler().append(second, 200);
  sim.remove(first);
  prefill(sim, second);
  EXPECT_EQ(sim.scheduler().counters().computed_tokens, 41U);  // the rest was found
}

TEST(Scheduler, SequencesThatCanNeverRunAreRefused) {
  Simulator sim({.num_blocks = 4, .max_seq_len = 128});
  EXPECT_THROW(sim.add({}), InvalidArgument);
  EXPECT_THROW(sim.add(counting(0, 200)), InvalidArgument);
  EXPECT_THROW(sim.add(counting(0, 10), 65), InvalidArgument);
  EXPECT_NO_THROW(sim.add(counting(0, 10), 64));
  EXPECT_THROW(sim.remove(SequenceId(99)), InvalidArgument);
}

TEST(Scheduler, RefusesAPrefixCacheOfAnotherBlockSize) {
  Simulator sim;
  prefix::NoPrefixCaching other(32);
  SchedulerConfig config;
  config.limits = {.max_seq_len = 64, .max_batch_size = 1, .max_batch_tokens = 8, .block_size = kBlockSize};
  EXPECT_THROW(Scheduler(config, sim.pool(), other), InvalidArgument);
}

struct SchedulerWithStore : testing::Test {
  SchedulerWithStore() : sim({.max_batch_size = 1, .prefix_caching = false, .preempted = &shelf}) {
    shelf.sim = &sim;
    low = sim.add(counting(0, 40));
    prefill(sim, low);
    decode(sim, low, 3);
    sim.scheduler().append(low, 5);
  }
  void preempt_low() {
    const SequenceId high = sim.add(counting(600, 20), 0, 5);
    prefill(sim, high);
    ASSERT_FALSE(sim.scheduler().info(low).running);
    sim.remove(high);
  }
  Shelf shelf;
  Simulator sim;
  SequenceId low;
};

TEST_F(SchedulerWithStore, PreemptedSequenceComesBackWithoutBeingComputedAgain) {
  preempt_low();
  EXPECT_EQ(shelf.shelf.size(), 1U);
  const std::uint64_t before = sim.scheduler().counters().computed_tokens;
  prefill(sim, low);
  EXPECT_EQ(sim.scheduler().counters().computed_tokens, before + 1);
  EXPECT_EQ(sim.scheduler().counters().restored, 1U);
  EXPECT_TRUE(shelf.shelf.empty());
}

TEST_F(SchedulerWithStore, WhatCannotBeRestoredIsComputedAgain) {
  shelf.restores = false;
  preempt_low();
  prefill(sim, low);
  EXPECT_EQ(sim.scheduler().counters().recomputed_tokens, 43U);
}

TEST_F(SchedulerWithStore, WhatIsNotSavedIsComputedAgain) {
  shelf.saves = false;
  preempt_low();
  prefill(sim, low);
  EXPECT_EQ(sim.scheduler().counters().recomputed_tokens, 43U);
}

TEST_F(SchedulerWithStore, SavedSequenceThatEndsIsForgotten) {
  preempt_low();
  sim.remove(low);
  EXPECT_TRUE(shelf.shelf.empty());
  EXPECT_THAT(shelf.forgotten, testing::ElementsAre(low));
}

}  // namespace
}  // namespace metrale::engine::test
