// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kv/block_pool.h>

namespace metrale::kv {
namespace {

using testing::HasSubstr;

TEST(BlockPool, BlockZeroIsHandedOutFirst) {
  BlockPool pool(3);
  EXPECT_EQ(pool.try_alloc()->value(), 0U);
  EXPECT_EQ(pool.try_alloc()->value(), 1U);
}

TEST(BlockPool, FreedBlockIsReusedFirst) {
  BlockPool pool(4);
  const BlockId first = *pool.try_alloc();
  (void)*pool.try_alloc();
  EXPECT_TRUE(pool.dec_ref(first));
  EXPECT_EQ(*pool.try_alloc(), first);
}

TEST(BlockPool, EmptyPoolReturnsNothing) {
  BlockPool pool(1);
  (void)*pool.try_alloc();
  EXPECT_FALSE(pool.try_alloc().has_value());
}

TEST(BlockPool, BlockIsFreeOnlyWhenItsLastReferenceGoes) {
  BlockPool pool(1);
  const BlockId block = *pool.try_alloc();
  pool.inc_ref(block);
  EXPECT_FALSE(pool.dec_ref(block));
  EXPECT_EQ(pool.num_free(), 0U);
  EXPECT_TRUE(pool.dec_ref(block));
  EXPECT_EQ(pool.num_free(), 1U);
}

TEST(BlockPool, DoubleReturnThrowsAndChangesNothing) {
  BlockPool pool(2);
  const BlockId block = *pool.try_alloc();
  pool.dec_ref(block);
  EXPECT_THROW(pool.dec_ref(block), InvalidArgument);
  EXPECT_EQ(pool.num_free(), 2U);
}

TEST(BlockPool, UseOfAFreeOrUnknownBlockThrows) {
  BlockPool pool(2);
  EXPECT_THROW(pool.inc_ref(BlockId(0)), InvalidArgument);
  EXPECT_THROW(pool.inc_ref(BlockId(2)), InvalidArgument);
  EXPECT_THROW(pool.dec_ref(BlockId(7)), InvalidArgument);
  EXPECT_THROW((void)pool.ref_count(BlockId(2)), InvalidArgument);
}

TEST(BlockPool, MisuseOfATracedBlockTellsItsHistory) {
  BlockPool pool(1, /*trace=*/true);
  const BlockId block = *pool.try_alloc();
  pool.inc_ref(block);
  pool.dec_ref(block);
  pool.dec_ref(block);
  try {
    pool.dec_ref(block);
    FAIL() << "a double return passed";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("block 0"));
    EXPECT_THAT(error.what(), HasSubstr("alloc -> 1"));
    EXPECT_THAT(error.what(), HasSubstr("inc_ref -> 2"));
    EXPECT_THAT(error.what(), HasSubstr("dec_ref -> 0"));
    EXPECT_THAT(error.what(), HasSubstr("block_pool_test.cpp"));
  }
}

TEST(BlockPool, HistoryIsEmptyWithoutTracing) {
  BlockPool pool(1);
  EXPECT_TRUE(pool.history(*pool.try_alloc()).empty());
}

TEST(BlockPool, ClearedPoolHasNoBlocks) {
  BlockPool pool(2);
  pool.clear();
  EXPECT_FALSE(pool.try_alloc().has_value());
  EXPECT_EQ(pool.num_blocks(), 0U);
}

// A stack and a map of counts, checked after each of many random operations.
TEST(BlockPool, RandomOperationsAgreeWithAStackAndCounts) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr std::uint32_t kBlocks = 12;
  BlockPool pool(kBlocks, /*trace=*/(seed & 1U) != 0);
  std::vector<std::uint32_t> stack;
  for (std::uint32_t i = kBlocks; i-- > 0;) stack.push_back(i);
  std::map<std::uint32_t, std::uint32_t> counts;

  for (int step = 0; step < 20'000; ++step) {
    const BlockId block(static_cast<std::uint32_t>(random() % (kBlocks + 1)));
    const bool live = counts.contains(block.value());
    switch (random() % 3) {
      case 0: {
        const auto got = pool.try_alloc();
        ASSERT_EQ(got.has_value(), !stack.empty());
        if (!got) break;
        ASSERT_EQ(got->value(), stack.back());
        stack.pop_back();
        counts[got->value()] = 1;
        break;
      }
      case 1:
        if (live) {
          pool.inc_ref(block);
          ++counts[block.value()];
        } else {
          ASSERT_THROW(pool.inc_ref(block), InvalidArgument);
        }
        break;
      default:
        if (!live) {
          ASSERT_THROW(pool.dec_ref(block), InvalidArgument);
        } else {
          const bool last = --counts[block.value()] == 0;
          ASSERT_EQ(pool.dec_ref(block), last);
          if (last) {
            counts.erase(block.value());
            stack.push_back(block.value());
          }
        }
    }
    ASSERT_EQ(pool.num_free(), stack.size());
    for (std::uint32_t b = 0; b < kBlocks; ++b) {
      ASSERT_EQ(pool.ref_count(BlockId(b)), counts.contains(b) ? counts[b] : 0U);
    }
  }
}

}  // namespace
}  // namespace metrale::kv
