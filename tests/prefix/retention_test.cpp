// SPDX-License-Identifier: Apache-2.0
#include <metrale/base/error.h>

#include "prefix/support.h"

namespace metrale::prefix {
namespace {

using testing::IsEmpty;
using RetentionTest = RadixTreeTest;

TEST_F(RetentionTest, LowerPriorityIsEvictedFirst) {
  insert("aaaa", {0}, {.priority = 1});
  insert("bbbb", {1}, {.priority = 0});
  insert("cccc", {2}, {.priority = 2});

  EXPECT_EQ(tree.evict(3), ids({1, 0, 2}));
}

TEST_F(RetentionTest, WhatAnImportantPrefixStandsOnIsAsImportant) {
  insert("aaaa", {0}, {.priority = 0});
  insert("aaaabbbb", {0, 1}, {.priority = 5});
  insert("cccc", {2}, {.priority = 3});

  EXPECT_EQ(tree.evict(3), ids({2, 1, 0}));
}

TEST_F(RetentionTest, PartOfAnEdgeCanBeMoreImportantThanTheRest) {
  insert("aaaabbbb", {0, 1}, {.priority = 1});
  insert("aaaa", {0}, {.priority = 5});
  insert("cccc", {2}, {.priority = 3});

  EXPECT_EQ(tree.evict(3), ids({1, 2, 0}));
}

TEST_F(RetentionTest, UnknownPriorityIsRefused) {
  EXPECT_THROW(insert("aaaa", {0}, {.priority = kPriorityClasses}), InvalidArgument);
}

TEST_F(RetentionTest, PrefixIsNotFoundAfterItsTime) {
  insert("aaaabbbb", {0, 1}, {.ttl = seconds(10)});

  clock.advance(seconds(10) - Nanoseconds(1));
  EXPECT_EQ(peek("aaaabbbb"), 8U);
  clock.advance(Nanoseconds(1));
  EXPECT_EQ(peek("aaaabbbb"), 0U);
  EXPECT_EQ(lookup("aaaabbbb").matched_tokens(), 0U);
  EXPECT_EQ(tree.evictable_blocks(), 2U);
}

TEST_F(RetentionTest, ExpiredPrefixesGoBeforeEverythingElse) {
  insert("aaaa", {0}, {.priority = 0});
  insert("bbbb", {1}, {.priority = 7, .ttl = seconds(1)});
  clock.advance(seconds(1));

  EXPECT_EQ(tree.evict(1), ids({1}));
  EXPECT_EQ(tree.counters().expired_blocks, 1U);
}

TEST_F(RetentionTest, ExpiredTreeIsTakenDownFromItsLeaves) {
  insert("aaaabbbb", {0, 1}, {.ttl = seconds(1)});
  insert("aaaacccc", {0, 2}, {.ttl = seconds(1)});
  insert("dddd", {3});
  clock.advance(seconds(2));

  EXPECT_THAT(tree.evict(3), testing::UnorderedElementsAre(BlockId(0), BlockId(1), BlockId(2)));
  EXPECT_EQ(peek("dddd"), 4U);
}

TEST_F(RetentionTest, LaterPublicationRenewsTheTime) {
  insert("aaaa", {0}, {.ttl = seconds(2)});
  clock.advance(seconds(1));
  insert("aaaabbbb", {0, 1}, {.ttl = seconds(2)});
  clock.advance(seconds(1));

  EXPECT_EQ(peek("aaaabbbb"), 8U);
  clock.advance(seconds(1));
  EXPECT_EQ(peek("aaaabbbb"), 0U);
}

TEST_F(RetentionTest, PublicationWithoutAnEndTakesTheEndAway) {
  insert("aaaa", {0}, {.ttl = seconds(1)});
  insert("aaaa", {0});
  clock.advance(seconds(5));
  EXPECT_EQ(peek("aaaa"), 4U);
}

TEST_F(RetentionTest, ExpiredPrefixLivesAgainWhenItIsPublishedAgain) {
  insert("aaaabbbb", {0, 1}, {.ttl = seconds(1)});
  const Match pin = lookup("aaaabbbb");
  clock.advance(seconds(1));
  EXPECT_THAT(tree.evict(2), IsEmpty());

  const InsertAcquired acquired = insert("aaaabbbb", {8, 9}, {.ttl = seconds(1)});

  EXPECT_EQ(acquired.duplicates.size(), 2U);
  EXPECT_EQ(peek("aaaabbbb"), 8U);
}

TEST_F(RetentionTest, PinnedPrefixOutlivesItsTimeAndGoesFirstAfterwards) {
  insert("aaaa", {0}, {.ttl = seconds(1)});
  insert("bbbb", {1});
  Match pin = tree.pin(kKey, tokens("aaaa"));
  clock.advance(seconds(1));

  EXPECT_EQ(tree.evict(1), ids({1}));
  pin.release();
  insert("cccc", {2});
  EXPECT_EQ(tree.evict(1), ids({0}));
}

TEST_F(RetentionTest, PinIsNotCountedAsALookup) {
  insert("aaaa", {0});
  const Match pin = tree.pin(kKey, tokens("aaaa"));
  EXPECT_EQ(blocks_of(pin), ids({0}));
  EXPECT_EQ(tree.counters().lookups, 0U);
}

TEST_F(RetentionTest, TimeToLiveMustBePositive) {
  EXPECT_THROW(insert("aaaa", {0}, {.ttl = seconds(0)}), InvalidArgument);
}

TEST_F(RetentionTest, EndlessTimeToLiveDoesNotOverflow) {
  clock.advance(seconds(100));
  insert("aaaa", {0}, {.ttl = Nanoseconds::max()});
  EXPECT_EQ(peek("aaaa"), 4U);
}

}  // namespace
}  // namespace metrale::prefix
