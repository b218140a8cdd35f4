// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/logits.h>

#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int32_t> run_argmax(const std::vector<float>& logits, std::uint32_t rows,
                                     ThreadPool& pool = test_pool()) {
  std::vector<std::int32_t> tokens(rows, -99);
  ArgmaxArgs args{};
  args.rows = address(&rows);
  args.logits = address(logits);
  args.tokens = address(tokens);
  args.max_rows = rows;
  args.vocab = static_cast<std::uint32_t>(logits.size() / rows);
  run_kernel(pool, kArgmax, args);
  return tokens;
}

std::int32_t model_argmax(const std::vector<float>& logits) {
  std::int32_t best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) continue;
    if (best < 0 || logits[i] > logits[static_cast<std::size_t>(best)]) best = static_cast<std::int32_t>(i);
  }
  return best;
}

TEST(Argmax, PicksTheLargestLogit) {
  EXPECT_EQ(run_argmax({0, 1, 3, 2, /**/ 9, -1, -2, 0}, 2), (std::vector<std::int32_t>{2, 0}));
}

TEST(Argmax, TakesTheLowestIndexOnTies) {
  std::vector<float> logits(50'000, -1.0F);
  logits[49'999] = 5;
  logits[16'390] = 5;
  logits[8'300] = 5;
  logits[8'301] = 5;
  EXPECT_EQ(run_argmax(logits, 1)[0], 8'300);
}

TEST(Argmax, TreatsZeroAndMinusZeroAsATie) {
  EXPECT_EQ(run_argmax({-1, -0.0F, 0.0F}, 1)[0], 1);
}

TEST(Argmax, SkipsWhatIsNotFinite) {
  EXPECT_EQ(run_argmax({kNan, kInf, -3, -kInf, -2, kNan}, 1)[0], 4);
  EXPECT_EQ(run_argmax({-kInf, std::numeric_limits<float>::lowest()}, 1)[0], 1);
}

TEST(Argmax, GivesMinusOneWhereNothingIsFinite) {
  EXPECT_EQ(run_argmax({kNan, kInf, -kInf, 1, 2, 3}, 2), (std::vector<std::int32_t>{-1, 2}));
}

TEST(Argmax, AgreesWithTheModelOnRandomRowsForAnyThreadsAndInstructionSet) {
  const std::uint32_t first_seed = 50;
  for (std::uint32_t seed = first_seed; seed < first_seed + 30; ++seed) {
    std::mt19937 random(seed);
    const std::size_t vocab = std::uniform_int_distribution<std::size_t>(1, 40'000)(random);
    std::vector<float> logits(vocab);
    // Few distinct values, so that ties are common.
    for (float& x : logits) x = static_cast<float>(static_cast<int>(random() % 60));
    for (std::size_t i = 0; i < vocab / 10; ++i) logits[random() % vocab] = i % 2 == 0 ? kNan : kInf;
    ThreadPool pool(1 + seed % 4);
    const std::int32_t expected = model_argmax(logits);
    ASSERT_EQ(run_argmax(logits, 1, pool)[0], expected) << "seed " << seed;
    const ForceAvx2 avx2;
    ASSERT_EQ(run_argmax(logits, 1, pool)[0], expected) << "seed " << seed;
  }
}

TEST(Argmax, RejectsMoreRowsThanTheLaunchWasMadeFor) {
  const std::uint32_t rows = 5;
  ArgmaxArgs args{};
  args.rows = address(&rows);
  args.max_rows = 4;
  EXPECT_THAT([&] { run_kernel(test_pool(), kArgmax, args); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("argmax: 5 rows")));
}

Elements run_gather(const Elements& in, std::uint32_t width, const std::vector<std::uint32_t>& ids) {
  const auto rows = static_cast<std::uint32_t>(ids.size());
  Elements out(in.type(), ids.size() * width);
  GatherRowsArgs args{};
  args.rows = address(&rows);
  args.row_ids = address(ids);
  args.in = in.address();
  args.out = out.address();
  args.max_rows = rows;
  args.width = width;
  args.in_rows = static_cast<std::uint32_t>(in.size() / width);
  args.type = in.type();
  run_kernel(test_pool(), kGatherRows, args);
  return out;
}

TEST(GatherRows, PicksTheRowsInOrder) {
  for (const quant::ElementType type : kAllTypes) {
    const Elements in(type, std::vector<float>{0, 1, 10, 11, 20, 21});
    EXPECT_THAT(run_gather(in, 2, {2, 0, 2}).floats(), testing::ElementsAre(20, 21, 0, 1, 20, 21));
  }
}

TEST(GatherRows, GathersNothingForNoRows) {
  EXPECT_EQ(run_gather(Elements(quant::ElementType::kF32, std::size_t{4}), 2, {}).size(), 0U);
}

TEST(GatherRows, RejectsARowThatIsNotThere) {
  const Elements in(quant::ElementType::kF32, std::size_t{6});
  EXPECT_THAT([&] { (void)run_gather(in, 2, {0, 3}); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("row id 3 at 1 is not below 3")));
}

TEST(GatherRows, RejectsMoreRowsThanTheLaunchWasMadeFor) {
  const std::uint32_t rows = 5;
  GatherRowsArgs args{};
  args.rows = address(&rows);
  args.max_rows = 4;
  EXPECT_THAT([&] { run_kernel(test_pool(), kGatherRows, args); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("gather_rows: 5 rows")));
}

}  // namespace
}  // namespace metrale::kernels
