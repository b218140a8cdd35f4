// SPDX-License-Identifier: Apache-2.0
// The rounding of a tile's weights to 16 bits, bit for bit against its definition on every instruction set.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention/levels.h"
#include "kernels/attention/split.h"
#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels::levels {
namespace {

using quant::KvFormat;

// What docs/kernels.md defines for weights: a largest integer W and a unit e.
struct WeightFormat {
  KvFormat format;
  float most;
  float unit;
};
constexpr WeightFormat kWeightFormats[] = {{KvFormat::kTurbo4, 29127, 0x1p-6F},
                                           {KvFormat::kTurbo3, 10922, 0x1p-8F},
                                           {KvFormat::kTurbo2, 29127, 0x1p-6F},
                                           {KvFormat::kTurbo8i, 32767, 1}};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// A row's weights and the steps of a record of a tile.
struct TileWeights {
  std::vector<float> weights = std::vector<float>(kKeyTile, 1.0F);
  std::vector<float> steps = std::vector<float>(kKeyTile, 1.0F);
  KeyRange seen{0, kKeyTile};
  std::size_t keys = kKeyTile;
};

struct RoundedTile {
  std::vector<std::int16_t> whole;  // in the order of keys
  float factor;
};

RoundedTile round_tile(KvFormat format, const TileWeights& from) {
  std::int16_t paired[kKeyTile];
  std::fill_n(paired, kKeyTile, std::int16_t{-7});
  RoundedTile tile{std::vector<std::int16_t>(from.keys), -1};
  round_tile_weights(format, from.weights.data(), from.steps.data(), from.seen, from.keys, paired,
                     tile.factor);
  static constexpr std::size_t kKeys[kOctet] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (std::size_t i = 0; i < from.keys; ++i) {
    tile.whole[i / kOctet * kOctet + kKeys[i % kOctet]] = paired[i];
  }
  return tile;
}

RoundedTile model_tile(const WeightFormat& format, const TileWeights& from) {
  RoundedTile model{std::vector<std::int16_t>(from.keys), 0};
  float largest = 0;
  bool finite = true;
  for (std::size_t key = from.seen.begin; key < from.seen.end; ++key) {
    const float product = from.weights[key] * from.steps[key];
    finite = finite && std::isfinite(product);
    largest = std::max(largest, std::abs(product));
  }
  model.factor = finite ? largest / format.most * format.unit : kNan;
  if (!finite || largest < 0x1p-110F) return model;
  const float inverse = format.most / largest;
  for (std::size_t key = from.seen.begin; key < from.seen.end; ++key) {
    const float product = from.weights[key] * from.steps[key];
    model.whole[key] = static_cast<std::int16_t>(std::nearbyint(product * inverse));  // ties to even
  }
  return model;
}

void expect_tile(const RoundedTile& tile, const std::vector<std::int16_t>& whole, float factor) {
  EXPECT_EQ(tile.whole, whole);
  if (std::isnan(factor)) {
    EXPECT_TRUE(std::isnan(tile.factor));
  } else {
    EXPECT_EQ(tile.factor, factor);
  }
}

// Calls body(format) for every format with integer values, with the best instruction set and with AVX2.
template <class Body>
void for_weight_formats(const Body& body) {
  for (const WeightFormat& format : kWeightFormats) {
    SCOPED_TRACE(quant::to_string(format.format));
    body(format);
    SCOPED_TRACE("AVX2");
    const ForceAvx2 avx2;
    body(format);
  }
}

TileWeights random_tile(std::uint32_t seed, float size) {
  std::mt19937 random(seed);
  TileWeights tile;
  tile.weights = random_normal(random, kKeyTile);
  tile.steps = random_normal(random, kKeyTile);
  for (float& weight : tile.weights) weight = std::exp(weight);
  for (float& step : tile.steps) step = std::abs(step) * size;
  return tile;
}

TEST(AttentionWeights, AreTheDefinitionsBitsForWhateverPartOfATileARowSees) {
  for_weight_formats([](const WeightFormat& format) {
    for (const float size : {1.0F, 1e-30F, 1e30F, 0.01F}) {
      for (const std::size_t keys : {64U, 48U, 40U, 8U}) {
        for (const KeyRange seen : {KeyRange{0, 64}, {3, 37}, {0, 1}, {7, 8}, {17, 30}, {63, 64}, {5, 5}}) {
          TileWeights tile = random_tile(11, size);
          tile.keys = keys;
          tile.seen = seen.of_tile(0, static_cast<std::uint32_t>(keys));
          const RoundedTile model = model_tile(format, tile);
          expect_tile(round_tile(format.format, tile), model.whole, model.factor);
        }
      }
    }
  });
}

TEST(AttentionWeights, OfKeysThatTheRowDoesNotSeeDoNotShow) {
  for_weight_formats([](const WeightFormat& format) {
    TileWeights tile = random_tile(12, 1);
    tile.seen = {3, 37};
    const RoundedTile model = model_tile(format, tile);
    EXPECT_EQ(*std::ranges::max_element(model.whole), format.most);
    for (const float garbage : {kNan, -kNan, kInf, -kInf, 3e38F, -5.0F}) {
      for (std::vector<float>* side : {&tile.weights, &tile.steps}) {
        std::fill_n(side->begin(), 3, garbage);
        std::fill(side->begin() + 37, side->end(), garbage);
      }
      expect_tile(round_tile(format.format, tile), model.whole, model.factor);
    }
  });
}

TEST(AttentionWeights, TiesGoToTheEvenInteger) {
  for_weight_formats([](const WeightFormat& format) {
    TileWeights tile;
    std::ranges::fill(tile.weights, 0.0F);
    const std::vector<float> given{0.5F, 1.5F,  2.5F,        3.5F,  -0.5F, -1.5F,  -2.5F,
                                   4.4F, 4.75F, format.most, -3.5F, 7.5F,  1000.5F};
    std::ranges::copy(given, tile.weights.begin());
    std::vector<std::int16_t> whole{0,  2, 2,   4, 0, -2, -2, 4, 5, static_cast<std::int16_t>(format.most),
                                    -4, 8, 1000};
    whole.resize(kKeyTile);
    expect_tile(round_tile(format.format, tile), whole, format.unit);
  });
}

TEST(AttentionWeights, TheLargestBecomesW) {
  for_weight_formats([](const WeightFormat& format) {
    for (const float largest : {1.0F, 0.7F, 3e38F, 1.7e-20F}) {
      TileWeights tile;
      std::ranges::fill(tile.weights, 0.0F);
      tile.weights[21] = largest;
      std::vector<std::int16_t> whole(kKeyTile);
      whole[21] = static_cast<std::int16_t>(format.most);
      expect_tile(round_tile(format.format, tile), whole, largest / format.most * format.unit);
    }
  });
}

TEST(AttentionWeights, ZerosAndWhatLiesBelowTheSmallestAreZeros) {
  const float below = std::nextafter(0x1p-110F, 0.0F);
  for_weight_formats([&](const WeightFormat& format) {
    for (const float x : {0.0F, -0.0F, std::numeric_limits<float>::denorm_min(), 0x1p-126F, below, -below}) {
      TileWeights tile;
      std::ranges::fill(tile.steps, x);
      const RoundedTile rounded = round_tile(format.format, tile);
      EXPECT_EQ(rounded.whole, std::vector<std::int16_t>(kKeyTile));
      EXPECT_TRUE(std::isfinite(rounded.factor));
    }
  });
}

TEST(AttentionWeights, TheSmallestAndWhatLiesJustAboveItCount) {
  for_weight_formats([](const WeightFormat& format) {
    for (const float x : {0x1p-110F, std::nextafter(0x1p-110F, 1.0F)}) {
      TileWeights tile;
      std::ranges::fill(tile.steps, x);
      tile.weights[5] = 0.5F;
      std::vector<std::int16_t> whole(kKeyTile, static_cast<std::int16_t>(format.most));
      whole[5] = static_cast<std::int16_t>(std::nearbyint(format.most / 2));
      const float factor = x / format.most * format.unit;  // subnormal, but for turbo8i
      EXPECT_GT(factor, 0);
      expect_tile(round_tile(format.format, tile), whole, factor);
    }
  });
}

TEST(AttentionWeights, OneThatIsNotFiniteGivesZerosAndNoNumberAsFactor) {
  for_weight_formats([](const WeightFormat& format) {
    for (const float x : {kNan, -kNan, kInf, -kInf}) {
      for (const std::size_t key : {0U, 8U, 36U, 63U}) {
        for (const bool step : {false, true}) {
          TileWeights tile = random_tile(13, 1);
          (step ? tile.steps : tile.weights)[key] = x;
          expect_tile(round_tile(format.format, tile), std::vector<std::int16_t>(kKeyTile), kNan);
        }
      }
    }
    TileWeights overflowing;
    overflowing.weights[9] = 4;
    overflowing.steps[9] = 3e38F;
    expect_tile(round_tile(format.format, overflowing), std::vector<std::int16_t>(kKeyTile), kNan);
  });
}

}  // namespace
}  // namespace metrale::kernels::levels
