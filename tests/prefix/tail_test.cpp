// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include <metrale/base/error.h>

#include "prefix/support.h"

namespace metrale::prefix {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using TailTest = RadixTreeTest;

std::pair<std::uint32_t, std::uint32_t> tail_of(const Match& match) {
  return match.tail() ? std::pair(match.tail()->block.value(), match.tail()->tokens) : std::pair(99U, 0U);
}

TEST_F(TailTest, PartialBlockIsOfferedForCopyingAndNeverHandedOut) {
  EXPECT_EQ(insert("aaaabb", {0, 1}).adopted, ids({0, 1}));

  const Match match = lookup("aaaabbXX");

  EXPECT_EQ(blocks_of(match), ids({0}));
  EXPECT_EQ(tail_of(match), std::pair(1U, 2U));
}

TEST_F(TailTest, PartialBlockThatWasNotGivenIsNotOffered) {
  EXPECT_EQ(insert("aaaabb", {0}).adopted, ids({0}));
  EXPECT_FALSE(lookup("aaaabbXX").tail());
}

TEST_F(TailTest, FullBlockIsOfferedForTheTokensItShares) {
  insert("aaaabbbbcccc", {0, 1, 2});

  EXPECT_EQ(tail_of(lookup("aaaabbbXXXXX")), std::pair(1U, 3U));
  EXPECT_EQ(tail_of(lookup("aaaabb")), std::pair(1U, 2U));
  EXPECT_EQ(tail_of(lookup("aX")), std::pair(0U, 1U));
}

TEST_F(TailTest, LongestSharedStartIsOffered) {
  insert("aaaab", {0, 1});
  insert("aaaabcdX", {0, 2});
  insert("aaaabcYY", {0, 3});

  EXPECT_EQ(tail_of(lookup("aaaabcdZ")), std::pair(2U, 3U));
}

TEST_F(TailTest, SourceOfACopyIsPinnedUntilItIsCopied) {
  insert("aaaabbbbcccc", {0, 1, 2});
  Match match = lookup("aaaabbXX");

  EXPECT_EQ(tree.evictable_blocks(), 1U);
  EXPECT_EQ(tree.evict(9), ids({2}));

  match.tail_copied();
  EXPECT_FALSE(match.tail());
  EXPECT_EQ(tree.evict(9), ids({1}));
}

TEST_F(TailTest, SourceOfACopyIsReleasedWithTheMatch) {
  insert("aa", {0});
  std::optional<Match> match = lookup("aaXX");
  EXPECT_EQ(tail_of(*match), std::pair(0U, 2U));
  EXPECT_EQ(tree.evictable_blocks(), 0U);

  match.reset();
  EXPECT_EQ(tree.evictable_blocks(), 1U);
}

TEST_F(TailTest, ForkDoesNotCarryTheTail) {
  insert("aaaabb", {0, 1});
  const Match match = lookup("aaaabb");
  const Match fork = match.fork();
  EXPECT_FALSE(fork.tail());
  EXPECT_EQ(blocks_of(fork), ids({0}));
}

TEST_F(TailTest, SameTailStaysWithTheCaller) {
  insert("aaaabb", {0, 1});
  EXPECT_THAT(insert("aaaabb", {0, 5}).duplicates, ElementsAre(DuplicateBlock{1, BlockId(5), BlockId(1)}));
}

TEST_F(TailTest, TailThatACachedBlockStartsWithStaysWithTheCaller) {
  insert("aaaabbbb", {0, 1});
  const InsertAcquired acquired = insert("aaaabb", {0, 5});

  EXPECT_THAT(acquired.adopted, IsEmpty());
  EXPECT_THAT(acquired.duplicates, ElementsAre(DuplicateBlock{1, BlockId(5), BlockId(1)}));
}

TEST_F(TailTest, LongerTailReplacesTheShorterOne) {
  insert("aaaab", {0, 1});

  const InsertAcquired acquired = insert("aaaabb", {0, 2});

  EXPECT_EQ(acquired.adopted, ids({2}));
  EXPECT_EQ(acquired.dropped, ids({1}));
  EXPECT_FALSE(tree.contains_block(BlockId(1)));
}

TEST_F(TailTest, FullBlockReplacesTheTailItContinues) {
  insert("aaaabb", {0, 1});

  const InsertAcquired acquired = insert("aaaabbbb", {0, 2});

  EXPECT_EQ(acquired.adopted, ids({2}));
  EXPECT_EQ(acquired.dropped, ids({1}));
}

TEST_F(TailTest, TailBeingCopiedIsNotReplaced) {
  insert("aaaabb", {0, 1});
  const Match match = lookup("aaaabb");

  EXPECT_THAT(insert("aaaabbbb", {0, 2}).dropped, IsEmpty());
  EXPECT_TRUE(tree.contains_block(BlockId(1)));
}

TEST_F(TailTest, TailKeptForLongerIsNotReplaced) {
  insert("aaaabb", {0, 1}, {.priority = 5});
  EXPECT_THAT(insert("aaaabbbb", {0, 2}, {.priority = 1}).dropped, IsEmpty());
}

TEST_F(TailTest, PublishedTailIsReadOnlyForItsOwnerToo) {
  insert("aaaabb", {0, 1});
  EXPECT_THROW(insert("aaaabbbb", {0, 1}), InvalidArgument);
  EXPECT_EQ(tree.cached_blocks(), 2U);
}

TEST_F(TailTest, TailsAreEvictedLikeOtherLeaves) {
  insert("aaaabb", {0, 1});
  EXPECT_EQ(tree.evict(2), ids({1, 0}));
}

TEST_F(TailTest, ExpiredTailIsNotOffered) {
  insert("aaaabb", {0, 1}, {.ttl = seconds(1)});
  insert("aaaa", {0});
  clock.advance(seconds(1));

  const Match match = lookup("aaaabb");
  EXPECT_EQ(match.matched_tokens(), 4U);
  EXPECT_FALSE(match.tail());
}

TEST_F(TailTest, CommitPublishesTheTail) {
  Reservation reservation = tree.reserve(kKey, tokens("aaaabb"), ids({0, 1}));
  EXPECT_EQ(reservation.publish(6).adopted, ids({0}));
  EXPECT_EQ(reservation.commit().adopted, ids({1}));
  EXPECT_EQ(tail_of(lookup("aaaabbb")), std::pair(1U, 2U));
}

TEST_F(TailTest, TailHitsAreCounted) {
  insert("aaaabb", {0, 1});
  (void)lookup("aaaabbb");
  EXPECT_EQ(tree.counters().tail_hits, 1U);
  EXPECT_EQ(tree.counters().tail_tokens, 2U);
}

}  // namespace
}  // namespace metrale::prefix
