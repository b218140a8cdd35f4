// SPDX-License-Identifier: Apache-2.0
// Memory runs out at each allocation of each call in turn: the call throws, nothing that can be observed has
// changed, and the same call succeeds afterwards.
#include <functional>
#include <support/failing_new.h>
#include <tuple>

#include "prefix/support.h"

namespace metrale::prefix {
namespace {

class AllocationFailure : public RadixTreeTest {
 protected:
  AllocationFailure() {
    insert("aaaabbbbcccc", {0, 1, 2});
    insert("aaaabb", {0, 3}, {.priority = 5, .ttl = seconds(9)});
    insert("ddddeeeeff", {4, 5, 6}, {.ttl = seconds(9)});
  }

  // Calls `body` with 0, 1, 2, … allocations to spend until it succeeds; returns how often it failed.
  int fail_everywhere(const std::function<void()>& body) {
    const auto state = [this] {
      return std::tuple(tree.cached_blocks(), tree.evictable_blocks(), tree.counters());
    };
    const auto before = state();
    for (int failures = 0;; ++failures) {
      allocations_left = failures;
      try {
        body();
        allocations_left = -1;
        return failures;
      } catch (const std::bad_alloc&) {
        allocations_left = -1;
      }
      EXPECT_EQ(tree.check_invariants(), "");
      EXPECT_TRUE(state() == before) << "after failure " << failures;
    }
  }
};

TEST_F(AllocationFailure, LookupThatFailsPinsNothing) {
  const std::vector<TokenId> prompt = tokens("aaaabbbbccXX");
  Match match;

  EXPECT_GT(fail_everywhere([&] { match = tree.lookup(kKey, prompt); }), 1);

  EXPECT_EQ(blocks_of(match), ids({0, 1}));
  EXPECT_EQ(match.tail()->tokens, 2U);
}

TEST_F(AllocationFailure, SplitOfAFailedLookupKeepsTheOrderOfEviction) {
  insert("gggghhhhiiiijjjj", {20, 21, 22, 23});
  insert("ggggkkkk", {20, 24});
  const std::vector<TokenId> prompt = tokens("gggghhhhiiii");

  EXPECT_GT(fail_everywhere([&] { (void)tree.lookup(kKey, prompt); }), 1);

  EXPECT_EQ(peek("gggghhhhiiii"), 12U);
}

TEST_F(AllocationFailure, InsertThatFailsPublishesNothing) {
  const std::vector<TokenId> prompt = tokens("aaaabbbbXXXXYY");
  const std::vector<BlockId> table = ids({0, 9, 10, 11});
  InsertAcquired acquired;

  EXPECT_GT(
      fail_everywhere([&] { acquired = tree.insert(kKey, prompt, table, nullptr, {.ttl = seconds(3)}); }), 5);

  EXPECT_EQ(acquired.adopted, ids({10, 11}));
  EXPECT_EQ(peek("aaaabbbbXXXX"), 12U);
}

TEST_F(AllocationFailure, InsertUnderANewKeyThatFailsLeavesNoRoot) {
  const std::vector<TokenId> prompt = tokens("aaaabb");
  const std::vector<BlockId> table = ids({9, 10});
  const PrefixKey key{"a tenant with a name of some length", "adapter"};

  EXPECT_GT(fail_everywhere([&] { (void)tree.insert(key, prompt, table); }), 3);

  EXPECT_EQ(tree.peek(key, prompt), 4U);
}

TEST_F(AllocationFailure, InsertWithAMatchThatFailsKeepsTheMatch) {
  const std::vector<TokenId> prompt = tokens("ddddeeeeffff");
  const std::vector<BlockId> table = ids({4, 5, 9});
  Match match = tree.lookup(kKey, tokens("ddddeeee"));

  EXPECT_GT(fail_everywhere([&] {
              EXPECT_EQ(match.matched_tokens(), 8U);
              (void)tree.insert(kKey, prompt, table, &match);
            }),
            1);

  EXPECT_EQ(blocks_of(match), table);
}

TEST_F(AllocationFailure, ReservationThatFailsToCommitCanCommitAgain) {
  const std::vector<TokenId> prompt = tokens("ddddXXXXYYYY");
  const std::vector<BlockId> table = ids({4, 9, 10});
  Reservation reservation = tree.reserve(kKey, prompt, table);
  InsertAcquired acquired;

  EXPECT_GT(fail_everywhere([&] { acquired = reservation.commit(); }), 1);

  EXPECT_EQ(acquired.adopted, ids({9, 10}));
}

TEST_F(AllocationFailure, EvictionThatFailsEvictsNothing) {
  EXPECT_EQ(fail_everywhere([&] { (void)tree.evict(2); }), 1);
}

TEST_F(AllocationFailure, EvictionNeedsNoMemoryToShrinkAnEdge) {
  (void)tree.evict(64);
  insert("gggghhhhiiiijjjj", {20, 21, 22, 23});

  for (std::uint32_t last = 23; last >= 20; --last) {
    allocations_left = 1;  // for the answer
    const std::vector<BlockId> evicted = tree.evict(1);
    allocations_left = -1;
    EXPECT_EQ(evicted, ids({last}));
    EXPECT_EQ(tree.check_invariants(), "");
  }
}

}  // namespace
}  // namespace metrale::prefix
