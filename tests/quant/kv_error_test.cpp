// SPDX-License-Identifier: Apache-2.0
// Measures of what formats lose, against slow calculations of the same.
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/quant/hadamard.h>
#include <metrale/quant/kv_equaliser.h>
#include <metrale/quant/kv_error.h>

namespace metrale::quant {
namespace {

constexpr std::size_t kDim = 64;

std::vector<float> normals(std::size_t count, unsigned seed, float sigma = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> x(count);
  for (float& v : x) v = normal(random);
  return x;
}

std::vector<float> signs(std::uint32_t head_dim) {
  std::vector<float> diagonal(head_dim);
  for (std::uint32_t i = 0; i < head_dim; ++i) diagonal[i] = diagonal_sign(42, i);
  return diagonal;
}

std::vector<float> back_from(KvFormat format, KvSide side, const KvHeadParams& params,
                             std::span<const float> x, std::uint32_t head_dim = kDim) {
  std::vector<float> back(x.size());
  round_trip(format, side, head_dim, params, x, back);
  return back;
}

TEST(KvError, IsTheSumOfSquaredDifferencesOverThatOfSquares) {
  const std::vector<float> x{3, -4, 0, 5};
  const SquaredError error = squared_error(x, std::vector<float>{2, -4, 2, 5});
  EXPECT_EQ(error.error, 5);
  EXPECT_EQ(error.power, 50);
  EXPECT_EQ(error.nmse(), 0.1);
  EXPECT_EQ(squared_error({}, {}).nmse(), 0);
  EXPECT_TRUE(std::isnan(squared_error(std::vector<float>{1}, std::vector<float>{NAN}).nmse()));
  EXPECT_THROW((void)squared_error(x, {}), InvalidArgument);
}

TEST(KvError, RoundTripIsWhatAStripeGivesBackInTheBasisThatWentIn) {
  const std::vector<float> diagonal = signs(kDim);
  const std::vector<float> mean = normals(kDim, 9);
  const std::vector<float> x = normals(21 * kDim, 1);  // the last block is part-filled
  for (const KvFormatInfo& info : kKvFormats) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      KvHeadParams params{.scale = 0.01F, .diagonal = diagonal, .mean = {}};
      if (info.rotated) params.mean = mean;
      const std::vector<float> back = back_from(info.format, side, params, x);
      for (std::size_t n = 0; n < 21; ++n) {
        std::vector<std::byte> bytes(kv_head_stripe_bytes(info.format, 16, kDim));
        KvStripe stripe(info.format, side, 16, kDim, bytes);
        std::vector<float> y(kDim);
        stripe.encode(3, params, std::span(x).subspan(n * kDim, kDim));
        stripe.decode(3, params, y);
        std::vector<float> expected = y;
        if (info.rotated) unrotate(params, y, expected);
        for (std::uint32_t i = 0; i < kDim; ++i)
          ASSERT_EQ(back[n * kDim + i], expected[i]) << info.name << " vector " << n;
      }
    }
  }
}

TEST(KvError, RoundTripRefusesWhatAreNoWholeVectors) {
  std::vector<float> room(kDim);
  const std::vector<float> x(kDim + 1);
  EXPECT_THROW(round_trip(KvFormat::kBf16, KvSide::kKey, kDim, {}, x, room), InvalidArgument);
  EXPECT_THROW(
      round_trip(KvFormat::kTurbo4, KvSide::kKey, 32, {}, std::span(x).first(32), std::span(room).first(32)),
      InvalidArgument);
}

TEST(KvError, FrozenScalesLeaveTwiceTheRoom) {
  const std::vector<float> x{1, -7, 3};
  EXPECT_EQ(frozen_scale(KvFormat::kFp8, x), 14.0F / 448);
  EXPECT_EQ(frozen_scale(KvFormat::kNvfp4, x), 14.0F / (448 * 6));
  EXPECT_EQ(frozen_scale(KvFormat::kNvfp4Searched, x), 14.0F / (448 * 6));
  EXPECT_EQ(frozen_scale(KvFormat::kTurbo4, x), 1.0F);
  EXPECT_EQ(frozen_scale(KvFormat::kFp8, std::vector<float>(3)), 1.0F);
}

// Attention of one query as the formulas have it.
struct Slow {
  std::vector<double> scores;
  std::vector<double> weights;
  std::vector<double> output;
};
Slow slow_attention(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
                    double scale, KeyRange range) {
  Slow result{.scores = {}, .weights = {}, .output = std::vector<double>(q.size())};
  double total = 0;
  for (std::size_t key = range.first; key < range.end; ++key) {
    double score = 0;
    for (std::size_t i = 0; i < q.size(); ++i) score += double{q[i]} * keys[key * q.size() + i];
    result.scores.push_back(scale * score);
    total += std::exp(result.scores.back());
  }
  for (const double score : result.scores) result.weights.push_back(std::exp(score) / total);
  for (std::size_t key = range.first; key < range.end; ++key) {
    for (std::size_t i = 0; i < q.size(); ++i)
      result.output[i] += result.weights[key - range.first] * values[key * q.size() + i];
  }
  return result;
}

TEST(AttentionError, IsWhatTheFormulasGive) {
  constexpr std::size_t kDims = 19;  // no whole vectors of a processor
  constexpr std::size_t kKeys = 30;
  const std::vector<float> queries = normals(4 * kDims, 1);
  const std::vector<float> keys = normals(kKeys * kDims, 2);
  const std::vector<float> values = normals(kKeys * kDims, 3);
  std::vector<float> other_keys = keys;
  std::vector<float> other_values = values;
  for (float& v : other_keys) v *= 1.05F;
  for (float& v : other_values) v += 0.1F;
  const std::vector<KeyRange> visible{{0, 1}, {0, 7}, {5, 20}, {0, 30}};
  const AttentionReference reference({.head_dim = kDims,
                                      .scale = 0.4,
                                      .queries = queries,
                                      .keys = keys,
                                      .values = values,
                                      .visible = visible});
  double squares = 0;
  double kl = 0;
  std::size_t scores = 0;
  SquaredError output;
  for (std::size_t query = 0; query < visible.size(); ++query) {
    const auto q = std::span(queries).subspan(query * kDims, kDims);
    const Slow exact = slow_attention(q, keys, values, 0.4, visible[query]);
    const Slow other = slow_attention(q, other_keys, other_values, 0.4, visible[query]);
    for (std::size_t i = 0; i < exact.scores.size(); ++i, ++scores) {
      squares += std::pow(exact.scores[i] - other.scores[i], 2);
      kl += exact.weights[i] * std::log(exact.weights[i] / other.weights[i]);
    }
    for (std::size_t i = 0; i < kDims; ++i) {
      output.error += std::pow(exact.output[i] - other.output[i], 2);
      output.power += std::pow(exact.output[i], 2);
    }
  }
  const AttentionReference::Keys with = reference.with_keys(other_keys);
  EXPECT_NEAR(with.logit_rmse, std::sqrt(squares / static_cast<double>(scores)), 1e-12);
  EXPECT_NEAR(with.kl, kl / 4, 1e-12);
  const SquaredError measured = reference.output_error(with.weights, other_values);
  EXPECT_NEAR(measured.error, output.error, 1e-12);
  EXPECT_NEAR(measured.power, output.power, 1e-12);
}

TEST(AttentionError, IsNothingForTheOriginals) {
  const std::vector<float> queries = normals(5 * kDim, 1, 30);
  const std::vector<float> keys = normals(40 * kDim, 2);
  const std::vector<float> values = normals(40 * kDim, 3);
  const AttentionReference reference(
      {.head_dim = kDim, .queries = queries, .keys = keys, .values = values, .visible = {}});
  const AttentionReference::Keys with = reference.with_keys(keys);
  EXPECT_EQ(with.logit_rmse, 0);
  EXPECT_EQ(with.kl, 0);
  EXPECT_EQ(reference.output_error(with.weights, values).nmse(), 0);
  EXPECT_EQ(std::vector<double>(reference.weights().begin(), reference.weights().end()), with.weights);
}

TEST(AttentionError, NumbersThatAreNoneDoNotPassForGoodOnes) {
  const std::vector<float> queries = normals(kDim, 1);
  std::vector<float> keys = normals(8 * kDim, 2);
  const AttentionReference reference(
      {.head_dim = kDim, .queries = queries, .keys = keys, .values = keys, .visible = {}});
  std::vector<float> broken = keys;
  broken[70] = NAN;
  const AttentionReference::Keys with = reference.with_keys(broken);
  EXPECT_TRUE(std::isnan(with.logit_rmse));
  EXPECT_TRUE(std::isnan(with.kl));
  EXPECT_TRUE(std::isnan(reference.output_error(with.weights, keys).nmse()));
}

TEST(AttentionError, RefusesSizesThatDoNotBelongTogether) {
  const std::vector<float> x(4 * kDim);
  const auto make = [&](std::size_t queries, std::size_t keys, std::size_t values,
                        std::vector<KeyRange> visible) {
    return AttentionReference({.head_dim = kDim,
                               .queries = std::span(x).first(queries),
                               .keys = std::span(x).first(keys),
                               .values = std::span(x).first(values),
                               .visible = visible});
  };
  EXPECT_NO_THROW(make(kDim, 2 * kDim, 2 * kDim, {}));
  EXPECT_THROW(make(0, kDim, kDim, {}), InvalidArgument);
  EXPECT_THROW(make(kDim, kDim + 1, kDim + 1, {}), InvalidArgument);
  EXPECT_THROW(make(kDim, 2 * kDim, kDim, {}), InvalidArgument);
  EXPECT_THROW(make(kDim, 2 * kDim, 2 * kDim, {{1, 1}}), InvalidArgument);
  EXPECT_THROW(make(kDim, 2 * kDim, 2 * kDim, {{0, 3}}), InvalidArgument);
  EXPECT_THROW(make(2 * kDim, 2 * kDim, 2 * kDim, {{0, 2}}), InvalidArgument);
  const AttentionReference good = make(kDim, 2 * kDim, 2 * kDim, {});
  EXPECT_THROW((void)good.with_keys(std::span(x).first(kDim)), InvalidArgument);
  EXPECT_THROW((void)good.output_error(good.weights(), std::span(x).first(kDim)), InvalidArgument);
}

struct Equaliser : testing::Test {
  Equaliser() {
    for (std::size_t i = 0; i < keys.size(); i += kDim) {
      keys[i + 3] = 20 * keys[i + 3] + 50;
      keys[i + 4] = 7;  // never changes
    }
    for (std::size_t i = 0; i < queries.size(); i += kDim) {
      queries[i + 3] /= 20;
      queries[i + 5] = 0;
    }
  }
  std::vector<float> keys = normals(200 * kDim, 5);
  std::vector<float> queries = normals(100 * kDim, 6);
};

TEST_F(Equaliser, DividesByTheRootOfSpreadOverSize) {
  const KvEqualiser made = make_equaliser(kDim, keys, queries);
  double sum = 0;
  double squares = 0;
  for (std::size_t i = 3; i < keys.size(); i += kDim) {
    sum += keys[i];
    squares += double{keys[i]} * keys[i];
  }
  double query_squares = 0;
  for (std::size_t i = 3; i < queries.size(); i += kDim) query_squares += double{queries[i]} * queries[i];
  const double spread = std::sqrt(squares / 200 - std::pow(sum / 200, 2));
  EXPECT_NEAR(made.mean[3], sum / 200, 1e-4);
  EXPECT_NEAR(made.s[3], std::sqrt(spread / std::sqrt(query_squares / 100)), 1e-3);
  EXPECT_EQ(made.mean[4], 7.0F);
  for (const float s : made.s) EXPECT_TRUE(std::isfinite(s) && s > 0);
}

TEST_F(Equaliser, ChangesScoresByAConstantOnly) {
  const KvEqualiser made = make_equaliser(kDim, keys, queries);
  const std::vector<float> diagonal = signs(kDim);
  const std::vector<float> of_keys = made.key_diagonal(diagonal);
  const std::vector<float> of_queries = made.query_diagonal(diagonal);
  std::vector<float> y(kDim);
  std::vector<float> turned(kDim);
  const auto q = std::span(queries).first(kDim);
  rotate({.diagonal = of_queries, .mean = {}}, q, turned);
  double constant = 0;
  for (std::uint32_t i = 0; i < kDim; ++i) constant += double{q[i]} * made.mean[i];
  for (std::size_t key = 0; key < 10; ++key) {
    const auto k = std::span(keys).subspan(key * kDim, kDim);
    rotate({.diagonal = of_keys, .mean = made.mean}, k, y);
    double before = 0;
    double after = 0;
    for (std::uint32_t i = 0; i < kDim; ++i) {
      before += double{q[i]} * k[i];
      after += double{turned[i]} * y[i];
    }
    EXPECT_NEAR(after, before - constant, 2e-4);
  }
}

TEST_F(Equaliser, MakesScoresBetterWhereQueriesMakeLittleOfLargeChannels) {
  const std::vector<float> diagonal = signs(kDim);
  const KvEqualiser made = make_equaliser(kDim, keys, queries);
  const std::vector<float> equalising = made.key_diagonal(diagonal);
  const AttentionReference reference(
      {.head_dim = kDim, .scale = 0.125, .queries = queries, .keys = keys, .values = keys, .visible = {}});
  const auto rmse = [&](const KvHeadParams& params) {
    return reference.with_keys(back_from(KvFormat::kTurbo4, KvSide::kKey, params, keys)).logit_rmse;
  };
  EXPECT_LT(rmse({.diagonal = equalising, .mean = made.mean}), rmse({.diagonal = diagonal, .mean = {}}) / 3);
}

TEST_F(Equaliser, OfZerosIsNone) {
  const KvEqualiser made = make_equaliser(kDim, std::vector<float>(kDim), std::vector<float>(kDim));
  EXPECT_EQ(made.s, std::vector<float>(kDim, 1.0F));
  EXPECT_THROW((void)make_equaliser(kDim, {}, queries), InvalidArgument);
  EXPECT_THROW((void)make_equaliser(kDim, keys, std::vector<float>(3)), InvalidArgument);
}

}  // namespace
}  // namespace metrale::quant
