// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <thread>

#include <metrale/base/error.h>

#include "prefix/support.h"

namespace metrale::prefix {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

TEST_F(RadixTreeTest, EmptyTreeMatchesNothing) {
  const Match match = lookup("aaaabbbb");

  EXPECT_EQ(match.matched_tokens(), 0U);
  EXPECT_FALSE(match.tail());
  EXPECT_TRUE(tree.is_active());
}

TEST_F(RadixTreeTest, InsertedPrefixIsMatchedInFullBlocks) {
  insert("aaaabbbbcccc", {7, 3, 5});

  const Match match = lookup("aaaabbbbccccdd");

  EXPECT_EQ(match.matched_tokens(), 12U);
  EXPECT_EQ(blocks_of(match), ids({7, 3, 5}));
}

TEST_F(RadixTreeTest, MatchEndsWhereTheTokensDiffer) {
  insert("aaaabbbbcccc", {0, 1, 2});

  const Match match = lookup("aaaabbbbXccc");

  EXPECT_EQ(blocks_of(match), ids({0, 1}));
}

TEST_F(RadixTreeTest, PromptShorterThanTheEdgeMatchesItsOwnBlocks) {
  insert("aaaabbbbcccc", {0, 1, 2});
  EXPECT_EQ(blocks_of(lookup("aaaabbbb")), ids({0, 1}));
}

TEST_F(RadixTreeTest, BranchesShareWhatTheyHaveInCommon) {
  insert("aaaabbbbcccc", {0, 1, 2});
  insert("aaaabbbbdddd", {0, 1, 3});

  EXPECT_EQ(blocks_of(lookup("aaaabbbbcccc")), ids({0, 1, 2}));
  EXPECT_EQ(blocks_of(lookup("aaaabbbbdddd")), ids({0, 1, 3}));
  EXPECT_EQ(tree.cached_blocks(), 4U);
}

TEST_F(RadixTreeTest, TenantsDoNotShare) {
  (void)tree.insert({"one", ""}, tokens("aaaa"), ids({0}));
  EXPECT_EQ(tree.peek({"two", ""}, tokens("aaaa")), 0U);
}

TEST_F(RadixTreeTest, SaltAndAdapterDoNotShareAName) {
  (void)tree.insert({"x", ""}, tokens("aaaa"), ids({0}));
  (void)tree.insert({"ab", "c"}, tokens("aaaa"), ids({1}));

  EXPECT_EQ(tree.peek({"", "x"}, tokens("aaaa")), 0U);
  EXPECT_EQ(tree.peek({"a", "bc"}, tokens("aaaa")), 0U);
  EXPECT_EQ(tree.peek({"ab", "c"}, tokens("aaaa")), 4U);
}

TEST_F(RadixTreeTest, TagWithinAKeyPartDoesNotEndIt) {
  (void)tree.insert({"xAy", "z"}, tokens("aaaa"), ids({0}));
  EXPECT_EQ(tree.peek({"x", "yAz"}, tokens("aaaa")), 0U);
}

TEST_F(RadixTreeTest, InsertTakesTheBlocksThatItDidNotHave) {
  insert("aaaa", {0});

  const InsertAcquired acquired = insert("aaaabbbbcccc", {0, 1, 2});

  EXPECT_EQ(acquired.adopted, ids({1, 2}));
  EXPECT_THAT(acquired.duplicates, IsEmpty());
  EXPECT_THAT(acquired.dropped, IsEmpty());
  EXPECT_EQ(acquired.cached_tokens, 12U);
}

TEST_F(RadixTreeTest, DuplicatesStayWithTheCaller) {
  insert("aaaabbbb", {0, 1});

  const InsertAcquired acquired = insert("aaaabbbbcccc", {0, 8, 9});

  EXPECT_EQ(acquired.adopted, ids({9}));
  EXPECT_THAT(acquired.duplicates, ElementsAre(DuplicateBlock{1, BlockId(8), BlockId(1)}));
  EXPECT_FALSE(tree.contains_block(BlockId(8)));
  EXPECT_EQ(blocks_of(lookup("aaaabbbbcccc")), ids({0, 1, 9}));
}

TEST_F(RadixTreeTest, BlockCachedForOtherTokensIsRefusedAndNothingChanges) {
  insert("aaaa", {0});

  EXPECT_THAT([&] { insert("bbbbcccc", {1, 0}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("block 0 at place 1 of the table, but it is cached")));
  EXPECT_THAT([&] { insert("bbbbcccc", {1, 1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("in the table twice")));
  EXPECT_THAT([&] { insert("bbbb", {64}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the pool has 64 blocks")));

  EXPECT_EQ(tree.cached_blocks(), 1U);
  EXPECT_EQ(peek("bbbb"), 0U);
  EXPECT_EQ(insert("bbbb", {1}).adopted, ids({1}));
}

TEST_F(RadixTreeTest, WrongCountOfBlocksIsRefused) {
  EXPECT_THROW(insert("aaaabbbb", {0}), InvalidArgument);
  EXPECT_THROW(insert("aaaa", {0, 1}), InvalidArgument);
  EXPECT_THROW(insert("aaaabb", {0, 1, 2}), InvalidArgument);
}

TEST_F(RadixTreeTest, PinnedBlocksAreNotEvicted) {
  insert("aaaabbbbcccc", {0, 1, 2});
  const Match match = lookup("aaaabbbb");

  EXPECT_EQ(tree.evictable_blocks(), 1U);
  EXPECT_EQ(tree.evict(9), ids({2}));
  EXPECT_EQ(peek("aaaabbbbcccc"), 8U);
}

TEST_F(RadixTreeTest, DroppedMatchReleasesExactlyItsPins) {
  insert("aaaabbbb", {0, 1});
  Match longer = lookup("aaaabbbb");
  Match shorter = lookup("aaaa");
  EXPECT_EQ(tree.evictable_blocks(), 0U);

  longer.release();
  longer.release();
  EXPECT_EQ(tree.evictable_blocks(), 1U);

  shorter = Match();
  EXPECT_EQ(tree.evictable_blocks(), 2U);
}

TEST_F(RadixTreeTest, MovedMatchReleasesOnce) {
  insert("aaaa", {0});
  Match first = lookup("aaaa");
  std::optional<Match> second(std::move(first));

  EXPECT_EQ(tree.evictable_blocks(), 0U);
  second.reset();
  EXPECT_EQ(tree.evictable_blocks(), 1U);
}

TEST_F(RadixTreeTest, ForkPinsTheSameBlocksAgain) {
  insert("aaaabbbb", {0, 1});
  Match parent = lookup("aaaabbbb");
  const Match child = parent.fork();

  parent.release();

  EXPECT_EQ(blocks_of(child), ids({0, 1}));
  EXPECT_EQ(tree.evictable_blocks(), 0U);
}

TEST_F(RadixTreeTest, PinsFollowASplitOfTheirNode) {
  insert("aaaabbbbcccc", {0, 1, 2});
  Match match = lookup("aaaabbbbcccc");

  insert("aaaaXXXX", {0, 9});  // splits the pinned edge

  EXPECT_EQ(tree.evict(9), ids({9}));
  EXPECT_EQ(blocks_of(lookup("aaaabbbbcccc")), ids({0, 1, 2}));
  match.release();
  EXPECT_EQ(tree.evictable_blocks(), 3U);
}

TEST_F(RadixTreeTest, EvictionTakesTheEndsOfPrefixesFirst) {
  insert("aaaabbbbcccc", {0, 1, 2});

  EXPECT_EQ(tree.evict(1), ids({2}));
  EXPECT_EQ(peek("aaaabbbbcccc"), 8U);
  EXPECT_EQ(tree.evict(5), ids({1, 0}));
  EXPECT_EQ(tree.cached_blocks(), 0U);
}

TEST_F(RadixTreeTest, LeastRecentlyUsedGoesFirst) {
  insert("aaaabbbb", {0, 1});
  insert("ccccdddd", {2, 3});
  (void)lookup("aaaabbbb");

  EXPECT_EQ(tree.evict(3), ids({3, 2, 1}));
}

TEST_F(RadixTreeTest, PeekLeavesRecencyCountersAndPinsAlone) {
  insert("aaaa", {0});
  insert("bbbb", {1});
  const PrefixCounters before = tree.counters();

  EXPECT_EQ(peek("aaaa"), 4U);

  EXPECT_EQ(tree.counters(), before);
  EXPECT_EQ(tree.evict(1), ids({0}));
}

TEST_F(RadixTreeTest, EvictedPrefixCanBePublishedAgain) {
  insert("aaaabbbb", {0, 1});
  (void)tree.evict(2);

  EXPECT_EQ(insert("aaaabbbb", {1, 0}).adopted, ids({1, 0}));
  EXPECT_EQ(blocks_of(lookup("aaaabbbb")), ids({1, 0}));
}

TEST_F(RadixTreeTest, InsertExtendsTheMatchOverWhatWasPublished) {
  insert("aaaa", {0});
  Match match = lookup("aaaabbbbcccc");

  (void)tree.insert(kKey, tokens("aaaabbbbcccc"), ids({0, 1, 2}), &match);

  EXPECT_EQ(blocks_of(match), ids({0, 1, 2}));
  EXPECT_EQ(tree.evictable_blocks(), 0U);
  match.release();
  EXPECT_EQ(tree.evictable_blocks(), 3U);
}

TEST_F(RadixTreeTest, InsertWithTheMatchOfAnotherPrefixIsRefused) {
  insert("aaaabbbb", {0, 1});
  Match match = lookup("aaaabbbb");

  EXPECT_THROW((void)tree.insert(kKey, tokens("ccccdddd"), ids({2, 3}), &match), InvalidArgument);
  EXPECT_THROW((void)tree.insert(kKey, tokens("aaaadddd"), ids({0, 3}), &match), InvalidArgument);
  EXPECT_THROW((void)tree.insert(kKey, tokens("aaaa"), ids({0}), &match), InvalidArgument);
  EXPECT_THROW((void)tree.insert({"other", ""}, tokens("aaaabbbb"), ids({2, 3}), &match), InvalidArgument);
  EXPECT_EQ(blocks_of(match), ids({0, 1}));
}

TEST_F(RadixTreeTest, MatchOfAnotherCacheIsRefused) {
  RadixTree other({.block_size = kBlockSize, .num_blocks = 4}, clock);
  (void)other.insert(kKey, tokens("aaaa"), ids({0}));
  Match match = other.lookup(kKey, tokens("aaaa"));

  EXPECT_THROW((void)tree.insert(kKey, tokens("aaaa"), ids({0}), &match), InvalidArgument);
}

TEST_F(RadixTreeTest, EdgeGrowsInPlaceWhileNobodyBranchesOff) {
  std::string letters;
  std::vector<BlockId> table;
  Match match;
  for (std::uint32_t i = 0; i < 32; ++i) {
    letters.append(4, static_cast<char>('a' + i));
    table.emplace_back(i);
    (void)tree.insert(kKey, tokens(letters), table, &match);
  }

  EXPECT_EQ(blocks_of(match), table);
  EXPECT_EQ(tree.evictable_blocks(), 0U);
  match.release();
  EXPECT_EQ(tree.evict(32).size(), 32U);
}

TEST_F(RadixTreeTest, CountersCountTokensAndBlocks) {
  insert("aaaabbbb", {0, 1});
  (void)lookup("aaaaXXXX");
  (void)lookup("YYYY");
  insert("aaaabbbb", {2, 3});
  (void)tree.evict(1);

  const PrefixCounters counters = tree.counters();
  EXPECT_EQ(counters.lookups, 2U);
  EXPECT_EQ(counters.hits, 1U);
  EXPECT_EQ(counters.lookup_tokens, 12U);
  EXPECT_EQ(counters.hit_tokens, 4U);
  EXPECT_EQ(counters.inserts, 2U);
  EXPECT_EQ(counters.inserted_blocks, 2U);
  EXPECT_EQ(counters.duplicate_blocks, 2U);
  EXPECT_EQ(counters.evicted_blocks, 1U);
}

TEST_F(RadixTreeTest, CollidingHashesAreMisses) {
  RadixTree collider({.block_size = kBlockSize,
                      .num_blocks = 16,
                      .hash = [](std::span<const std::byte>, std::uint64_t) { return std::uint64_t{42}; }},
                     clock);
  (void)collider.insert(kKey, tokens("aaaabbbb"), ids({0, 1}));
  (void)collider.insert({"other", ""}, tokens("ccccdddd"), ids({2, 3}));

  EXPECT_EQ(collider.peek(kKey, tokens("ccccdddd")), 0U);
  EXPECT_EQ(collider.peek(kKey, tokens("aaaadddd")), 4U);
  EXPECT_EQ(collider.peek({"other", ""}, tokens("ccccdddd")), 8U);
  EXPECT_EQ(collider.check_invariants(), "");
}

TEST_F(RadixTreeTest, OverheadStaysWithinTwoHundredBytesABlockWithoutAnyCompression) {
  constexpr std::uint32_t kBlocks = 50'000;
  RadixTree forest({.block_size = 16, .num_blocks = kBlocks}, clock);
  std::vector<TokenId> prompt(16);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    prompt[0] = static_cast<TokenId>(i);
    (void)forest.insert(kKey, prompt, ids({i}));
  }

  EXPECT_LE(forest.overhead_bytes() / kBlocks, 200U);
}

TEST_F(RadixTreeTest, HandlesMayBeDroppedOnOtherThreads) {
  insert("aaaabbbbcccc", {0, 1, 2});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 200; ++i) {
        Match match = lookup(i % 2 == 0 ? "aaaabbbbcccc" : "aaaabbbb");
        const Match fork = match.fork();
        match.release();
        const auto own = static_cast<std::uint32_t>(10 + t);
        insert(std::string("aaaa") + std::string(4, static_cast<char>('p' + t)), {0, own});
        (void)peek("aaaabbbb");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(tree.evictable_blocks(), 7U);
  EXPECT_EQ(tree.evict(9).size(), 7U);
}

}  // namespace
}  // namespace metrale::prefix
