// SPDX-License-Identifier: Apache-2.0
// Short words for the tests of the prefix cache: blocks of 4 tokens, prompts by letters, a tree that is
// checked.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/prefix/radix_tree.h>

namespace metrale::prefix {

inline constexpr std::uint32_t kBlockSize = 4;
inline constexpr PrefixKey kKey{"tenant", ""};

// One token for each letter.
inline std::vector<TokenId> tokens(std::string_view letters) {
  return {letters.begin(), letters.end()};
}

inline std::vector<BlockId> ids(std::initializer_list<std::uint32_t> values) {
  std::vector<BlockId> blocks;
  for (const std::uint32_t value : values) blocks.emplace_back(value);
  return blocks;
}

inline std::vector<BlockId> blocks_of(const Match& match) {
  return {match.blocks().begin(), match.blocks().end()};
}

// Every test ends with a look at the invariants.
class RadixTreeTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(tree.check_invariants(), ""); }

  InsertAcquired insert(std::string_view letters, std::initializer_list<std::uint32_t> blocks,
                        const Retention& retention = {}) {
    return tree.insert(kKey, tokens(letters), ids(blocks), nullptr, retention);
  }
  Match lookup(std::string_view letters) { return tree.lookup(kKey, tokens(letters)); }
  std::size_t peek(std::string_view letters) { return tree.peek(kKey, tokens(letters)); }
  static Nanoseconds seconds(int count) { return std::chrono::seconds(count); }

  ManualClock clock;
  RadixTree tree{{.block_size = kBlockSize, .num_blocks = 64}, clock};
};

}  // namespace metrale::prefix
