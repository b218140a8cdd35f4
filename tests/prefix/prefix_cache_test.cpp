// SPDX-License-Identifier: Apache-2.0
#include <metrale/base/error.h>
#include <metrale/prefix/no_prefix_caching.h>

#include "prefix/support.h"

namespace metrale::prefix {
namespace {

using testing::IsEmpty;

TEST(NoPrefixCaching, MissesAlwaysAndTakesNothing) {
  NoPrefixCaching cache(kBlockSize);

  const InsertAcquired acquired = cache.insert(kKey, tokens("aaaa"), ids({0}));
  const Match match = cache.lookup(kKey, tokens("aaaa"));

  EXPECT_FALSE(cache.is_active());
  EXPECT_THAT(acquired.adopted, IsEmpty());
  EXPECT_EQ(acquired.cached_tokens, 0U);
  EXPECT_EQ(match.matched_tokens(), 0U);
  EXPECT_THAT(cache.evict(3), IsEmpty());
}

TEST(NoPrefixCaching, ReservationsCommitIntoNothing) {
  NoPrefixCaching cache(kBlockSize);
  Reservation reservation = cache.reserve(kKey, tokens("aaaa"), ids({0}));
  EXPECT_THAT(reservation.commit().adopted, IsEmpty());
}

TEST(PrefixCacheConfig, UnusableSettingsAreRefused) {
  const ManualClock clock;
  EXPECT_THROW(RadixTree({.block_size = 0, .num_blocks = 4}, clock), InvalidArgument);
  EXPECT_THROW(RadixTree({.block_size = 4, .num_blocks = 0}, clock), InvalidArgument);
  EXPECT_THROW(NoPrefixCaching(5000), InvalidArgument);
}

using ReservationTest = RadixTreeTest;

TEST_F(ReservationTest, NothingIsFoundBeforeTheCommit) {
  Reservation reservation = tree.reserve(kKey, tokens("aaaabbbb"), ids({0, 1}));
  EXPECT_EQ(peek("aaaabbbb"), 0U);

  EXPECT_EQ(reservation.commit().adopted, ids({0, 1}));

  EXPECT_EQ(peek("aaaabbbb"), 8U);
  EXPECT_EQ(tree.evictable_blocks(), 2U);
  EXPECT_FALSE(reservation.is_open());
}

TEST_F(ReservationTest, DroppedReservationLeavesNoTrace) {
  {
    const Reservation reservation = tree.reserve(kKey, tokens("aaaabbbb"), ids({0, 1}));
  }

  EXPECT_EQ(tree.cached_blocks(), 0U);
  EXPECT_EQ(peek("aaaabbbb"), 0U);
}

TEST_F(ReservationTest, PrefixBeforeAReservationStaysCached) {
  insert("aaaa", {0});
  Reservation reservation = tree.reserve(kKey, tokens("aaaabbbb"), ids({0, 1}));

  EXPECT_THAT(tree.evict(1), IsEmpty());

  reservation.roll_back();
  EXPECT_EQ(tree.evict(1), ids({0}));
}

TEST_F(ReservationTest, BlocksBecomeFindableAsTheyGetReadyAndStayPinned) {
  Reservation reservation = tree.reserve(kKey, tokens("aaaabbbbcccc"), ids({0, 1, 2}));

  EXPECT_EQ(reservation.publish(7).adopted, ids({0}));
  EXPECT_EQ(peek("aaaabbbbcccc"), 4U);
  EXPECT_EQ(reservation.publish(8).adopted, ids({1}));
  EXPECT_THAT(reservation.publish(4).adopted, IsEmpty());
  EXPECT_THAT(tree.evict(9), IsEmpty());

  reservation.roll_back();
  EXPECT_EQ(peek("aaaabbbbcccc"), 8U);
  EXPECT_EQ(tree.evictable_blocks(), 2U);
}

TEST_F(ReservationTest, SecondOfTwoEqualReservationsKeepsItsBlocks) {
  Reservation first = tree.reserve(kKey, tokens("aaaabbbb"), ids({0, 1}));
  Reservation second = tree.reserve(kKey, tokens("aaaabbbb"), ids({2, 3}));

  EXPECT_EQ(first.commit().adopted, ids({0, 1}));
  const InsertAcquired acquired = second.commit();

  EXPECT_THAT(acquired.adopted, IsEmpty());
  EXPECT_EQ(acquired.duplicates.size(), 2U);
}

TEST_F(ReservationTest, SurvivesASplitOfItsPlace) {
  insert("aaaabbbb", {0, 1});
  Reservation reservation = tree.reserve(kKey, tokens("aaaabbbbcccc"), ids({0, 1, 2}));
  insert("aaaaXXXX", {0, 9});

  EXPECT_EQ(reservation.commit().adopted, ids({2}));
  EXPECT_EQ(blocks_of(lookup("aaaabbbbcccc")), ids({0, 1, 2}));
}

TEST_F(ReservationTest, RefusedCommitCanStillBeRolledBack) {
  insert("aaaa", {0});
  Reservation reservation = tree.reserve(kKey, tokens("bbbb"), ids({0}));

  EXPECT_THROW((void)reservation.commit(), InvalidArgument);
  EXPECT_TRUE(reservation.is_open());
  reservation.roll_back();
  EXPECT_THROW((void)reservation.commit(), InvalidArgument);
  EXPECT_THROW((void)reservation.publish(4), InvalidArgument);
}

TEST_F(ReservationTest, MovedReservationIsClosed) {
  Reservation first = tree.reserve(kKey, tokens("aaaa"), ids({0}));
  Reservation second = std::move(first);

  EXPECT_FALSE(
      first.is_open());  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move): that is the point
  EXPECT_EQ(second.commit().adopted, ids({0}));
}

TEST_F(ReservationTest, MoreTokensThanReservedAreRefused) {
  Reservation reservation = tree.reserve(kKey, tokens("aaaa"), ids({0}));
  EXPECT_THROW((void)reservation.publish(5), InvalidArgument);
}

}  // namespace
}  // namespace metrale::prefix
