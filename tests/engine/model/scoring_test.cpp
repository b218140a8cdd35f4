// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <random>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/engine/scoring.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

using engine::ScoreWindow;
using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The definition, without the maximum taken off first.
double slow_log_prob(std::span<const float> logits, std::int32_t token) {
  long double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  return static_cast<double>(static_cast<long double>(logits[static_cast<std::size_t>(token)]) -
                             std::log(sum));
}

TEST(ScoreLogits, LogSoftmaxIsExactToDoublePrecision) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 8);
  std::vector<float> logits(5000);
  for (float& logit : logits) logit = normal(random);
  for (const std::int32_t token : {0, 17, 4999}) {
    EXPECT_NEAR(engine::score_logits(logits, token).log_prob, slow_log_prob(logits, token), 1e-12);
  }
}

TEST(ScoreLogits, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits{3e38F, 3e38F, -3e38F};
  EXPECT_NEAR(engine::score_logits(logits, 1).log_prob, std::log(0.5), 1e-15);
  EXPECT_NEAR(engine::score_logits(logits, 2).log_prob, -6e38, 1e32);
}

TEST(ScoreLogits, LowestIdOfEqualsIsGreedy) {
  const std::vector<float> logits{1, 4, 4};
  EXPECT_TRUE(engine::score_logits(logits, 1).is_greedy());
  EXPECT_FALSE(engine::score_logits(logits, 2).is_greedy());
}

TEST(ScoreLogits, BannedTokenHasNoLikelihoodAndBrokenLogitsAreRefused) {
  EXPECT_EQ(engine::score_logits(std::vector<float>{-kInfinity, 0}, 0).log_prob, -kInfinity);
  EXPECT_THROW((void)engine::score_logits(std::vector<float>{0, kInfinity}, 0), DeviceError);
  EXPECT_THROW((void)engine::score_logits(std::vector<float>{0, std::nanf("")}, 0), DeviceError);
  EXPECT_THROW((void)engine::score_logits(std::vector<float>{-kInfinity, -kInfinity}, 0), DeviceError);
  EXPECT_THROW((void)engine::score_logits(std::vector<float>{0, 1}, 2), InvalidArgument);
}

TEST(LogitDivergence, IsTheDefinitionAndNothingForEqualRows) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> p(3000);
  std::vector<float> q(3000);
  for (std::size_t i = 0; i < p.size(); ++i) {
    p[i] = normal(random);
    q[i] = p[i] + normal(random) / 8;
  }
  p[7] = q[7] = -kInfinity;  // banned
  double expected = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (i == 7) continue;
    const double log_p = slow_log_prob(p, static_cast<std::int32_t>(i));
    expected += std::exp(log_p) * (log_p - slow_log_prob(q, static_cast<std::int32_t>(i)));
  }
  EXPECT_GT(expected, 0.01);
  EXPECT_NEAR(engine::logit_divergence(p, q), expected, 1e-12);
  EXPECT_EQ(engine::logit_divergence(p, p), 0);
  std::vector<float> broken = q;
  broken[9] = std::nanf("");
  EXPECT_EQ(engine::logit_divergence(p, broken), std::numeric_limits<double>::infinity());
  std::vector<float> shifted = p;
  for (float& logit : shifted) logit += 64;
  EXPECT_NEAR(engine::logit_divergence(p, shifted), 0, 1e-6);
}

TEST(ScoreWindows, WithoutOverlapTheFirstTokenOfEachIsNotScored) {
  EXPECT_THAT(engine::score_windows(10, 4, 4),
              ElementsAre(ScoreWindow{0, 1, 4}, ScoreWindow{4, 5, 8}, ScoreWindow{8, 9, 10}));
}

TEST(ScoreWindows, WithOverlapEveryTokenButTheFirstIsScoredOnce) {
  EXPECT_THAT(engine::score_windows(9, 4, 2), ElementsAre(ScoreWindow{0, 1, 4}, ScoreWindow{2, 4, 6},
                                                          ScoreWindow{4, 6, 8}, ScoreWindow{6, 8, 9}));
}

TEST(ScoreWindows, ShortTextIsOneWindowAndAWindowWithoutTargetsIsLeftOut) {
  EXPECT_THAT(engine::score_windows(3, 8, 8), ElementsAre(ScoreWindow{0, 1, 3}));
  EXPECT_THAT(engine::score_windows(5, 4, 4), ElementsAre(ScoreWindow{0, 1, 4}));
}

TEST(ScoreWindows, MaxWindowsKeepsTheFirst) {
  EXPECT_THAT(engine::score_windows(100, 4, 4, 2), ElementsAre(ScoreWindow{0, 1, 4}, ScoreWindow{4, 5, 8}));
}

TEST(ScoreWindows, RandomSizesScoreTheTokensOfTheStridedLoop) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    const std::size_t tokens = 2 + random() % 60;
    const std::size_t window = 2 + random() % 20;
    const std::size_t stride = 1 + random() % window;
    // Token by token: scored where a window holds it, no window before did, and something precedes it there.
    std::vector<int> expected(tokens, 0);
    std::vector<bool> seen(tokens, false);
    for (std::size_t begin = 0;; begin += stride) {
      for (std::size_t at = begin; at < std::min(begin + window, tokens); ++at) {
        if (!seen[at] && at > begin) ++expected[at];
        seen[at] = true;
      }
      if (begin + window >= tokens) break;
    }
    std::vector<int> scored(tokens, 0);
    for (const ScoreWindow& w : engine::score_windows(tokens, window, stride)) {
      for (std::size_t at = w.first_target; at < w.end; ++at) ++scored[at];
    }
    EXPECT_EQ(scored, expected) << tokens << " tokens, window " << window << ", stride " << stride;
  }
}

TEST(ScoreWindows, MeaninglessSizesAreRefused) {
  EXPECT_THROW((void)engine::score_windows(1, 4, 4), InvalidArgument);
  EXPECT_THROW((void)engine::score_windows(10, 1, 1), InvalidArgument);
  EXPECT_THROW((void)engine::score_windows(10, 4, 0), InvalidArgument);
  EXPECT_THROW((void)engine::score_windows(10, 4, 5), InvalidArgument);
}

class Scoring : public testing::Test {
 protected:
  Scoring() {
    write_tiny_model(tiny_model("tiny_base"), dir.path());
    std::mt19937 random(11);
    for (std::int32_t& token : text) token = static_cast<std::int32_t>(random() % 512);
  }

  [[nodiscard]] static engine::EngineOptions options(std::uint32_t max_seq_len,
                                                     std::uint32_t max_batch_tokens) {
    engine::EngineOptions result;
    result.max_seq_len = max_seq_len;
    result.max_batch_tokens = max_batch_tokens;
    return result;
  }
  [[nodiscard]] EngineHarness harness(std::uint32_t max_batch_tokens) const {
    return EngineHarness(dir.path(), options(400, max_batch_tokens));
  }

  TempDir dir;
  Tokens text = Tokens(380);
};

TEST_F(Scoring, ScoresAreThoseOfTheLogitsBeforeEachToken) {
  EngineHarness engine = harness(512);
  const std::vector<float> logits = engine.logits_alone(text, 100);

  const auto scores = engine::Scorer(engine.engine()).score(text, 1);

  ASSERT_EQ(scores.size(), text.size() - 1);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto row = std::span(logits).subspan(i * 512, 512);
    EXPECT_EQ(scores[i].token, text[i + 1]);
    EXPECT_NEAR(scores[i].log_prob, slow_log_prob(row, text[i + 1]), 1e-12) << i;
    EXPECT_EQ(scores[i].greedy, std::ranges::max_element(row) - row.begin());
  }
}

// The slow way: two engines, one with the cache in BF16, compared position by position.
TEST_F(Scoring, DivergenceIsThatFromAnEngineWithABf16Cache) {
  engine::EngineOptions quantised = options(400, 64);
  quantised.kv_dtype = {quant::KvFormat::kFp8, quant::KvFormat::kFp8};
  EngineHarness plain = harness(100);
  EngineHarness fp8(dir.path(), quantised);
  const std::vector<float> expected = plain.logits_alone(text, 64);
  const std::vector<float> actual = fp8.logits_alone(text, 64);
  engine::Bf16Reference reference(fp8.engine());

  const auto scores = engine::Scorer(fp8.engine(), &reference).score(text, 200);

  ASSERT_EQ(scores.size(), 180U);
  double sum = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto row = std::span(expected).subspan((199 + i) * 512, 512);
    EXPECT_EQ(scores[i].divergence,
              engine::logit_divergence(row, std::span(actual).subspan((199 + i) * 512, 512)));
    EXPECT_EQ(scores[i].reference_greedy, std::ranges::max_element(row) - row.begin());
    sum += scores[i].divergence;
  }
  EXPECT_GT(sum, 0);
}

TEST_F(Scoring, Bf16CacheDoesNotDivergeFromItsReference) {
  EngineHarness engine = harness(64);
  engine::Bf16Reference reference(engine.engine());
  for (const engine::TokenScore& score : engine::Scorer(engine.engine(), &reference).score(text, 1)) {
    EXPECT_EQ(score.divergence, 0);
    EXPECT_EQ(score.reference_greedy, score.greedy);
  }
}

TEST_F(Scoring, StepSizeDoesNotShowAndContextIsNotScored) {
  EngineHarness wide = harness(512);
  EngineHarness narrow = harness(7);
  const auto all = engine::Scorer(wide.engine()).score(text, 1);

  const auto tail = engine::Scorer(narrow.engine()).score(text, 300);

  ASSERT_EQ(tail.size(), 80U);
  for (std::size_t i = 0; i < tail.size(); ++i) EXPECT_EQ(tail[i].log_prob, all[299 + i].log_prob) << i;
}

TEST_F(Scoring, BlocksAreGivenBackAlsoAfterACancel) {
  EngineHarness engine = harness(64);
  engine::Scorer scorer(engine.engine());
  const std::uint32_t free_blocks = engine.engine().cache().num_free_blocks();
  int steps = 0;

  EXPECT_THROW((void)scorer.score(text, 1, [&] { return ++steps < 3; }), Cancelled);

  EXPECT_EQ(engine.engine().cache().num_free_blocks(), free_blocks);
  EXPECT_EQ(scorer.score(text, 1).size(), text.size() - 1);
}

TEST_F(Scoring, LastTokenNeedsNoRoomAndOneMoreIsRefused) {
  EngineHarness engine(dir.path(), options(20, 512));
  engine::Scorer scorer(engine.engine());
  EXPECT_EQ(scorer.score(std::span(text).first(21), 20).size(), 1U);
  EXPECT_THROW((void)scorer.score(std::span(text).first(22), 20), InvalidArgument);
  EXPECT_THROW((void)scorer.score(std::span(text).first(5), 0), InvalidArgument);
  EXPECT_THROW((void)scorer.score(std::span(text).first(5), 5), InvalidArgument);
  EXPECT_THROW((void)scorer.score(Tokens{1, 512}, 1), InvalidArgument);
}

}  // namespace
}  // namespace metrale::test
