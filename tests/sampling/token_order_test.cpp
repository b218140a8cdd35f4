// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <metrale/sampling/token_order.h>

#include "sampling/sampling_support.h"

namespace metrale::sampling {
namespace {

TEST(GreedyToken, EqualLogitsGoToTheLowestId) {
  EXPECT_EQ(greedy_token(Logits{1.0f, 3.0f, 3.0f, 2.0f, 3.0f}), 1u);
  EXPECT_EQ(greedy_token(Logits(70000, 0.5f)), 0u);
}

TEST(GreedyToken, ATieOfNegativeAndPositiveZeroGoesToTheLowestId) {
  EXPECT_EQ(greedy_token(Logits{-1.0f, -0.0f, 0.0f}), 1u);
  EXPECT_EQ(greedy_token(Logits{-1.0f, 0.0f, -0.0f}), 1u);
}

TEST(GreedyToken, NanAndInfinitiesNeverWin) {
  EXPECT_EQ(greedy_token(Logits{kNan, -3.0f, kInfinity, -2.0f, -kInfinity, -kNan}), 3u);
}

TEST(GreedyToken, NothingFiniteGivesNoToken) {
  EXPECT_EQ(greedy_token(Logits{}), std::nullopt);
  EXPECT_EQ(greedy_token(Logits{kNan}), std::nullopt);
  EXPECT_EQ(greedy_token(Logits{-kInfinity, kInfinity, kNan}), std::nullopt);
}

TEST(GreedyToken, TheLowestFiniteFloatStillWinsOverNothing) {
  EXPECT_EQ(greedy_token(Logits{-kInfinity, std::numeric_limits<float>::lowest()}), 1u);
}

TEST(GreedyToken, TheWinnerIsFoundWhereverItLies) {
  for (const std::size_t size : {1u, 2u, 31u, 1023u, 1024u, 1025u, 5000u}) {
    for (std::size_t winner = 0; winner < size; winner += 1 + size / 37) {
      Logits logits(size, -5.0f);
      logits[winner] = -4.5f;
      EXPECT_EQ(greedy_token(logits), winner);
    }
  }
}

TEST(GreedyToken, ALastTileOfBannedTokensNeverYieldsAnIdOutside) {
  Logits logits(1056, -kInfinity);
  logits[1023] = -1e30f;
  EXPECT_EQ(greedy_token(logits), 1023u);
}

TEST(TokenKey, LargerLogitsComeFirstThenLowerIds) {
  const float ascending[] = {std::numeric_limits<float>::lowest(), -2.0f, -1e-40f, 0.0f, 1e-40f, 1.0f, 3e38f};
  for (std::size_t i = 1; i < std::size(ascending); ++i) {
    EXPECT_GT(token_key(ascending[i], 900), token_key(ascending[i - 1], 3));
    EXPECT_GT(token_key(ascending[i], 3), token_key(ascending[i], 4));
  }
  EXPECT_GT(token_key(-0.0f, 3), token_key(0.0f, 4));
}

TEST(TokenKey, GivesItsIdBack) {
  for (const std::uint32_t id : {0u, 1u, 128255u, 0xFFFFFFFEu})
    EXPECT_EQ(token_of_key(token_key(-1.5f, id)), id);
}

}  // namespace
}  // namespace metrale::sampling
