// SPDX-License-Identifier: Apache-2.0
// The arithmetic of attention over levels: each instruction set against its definition, bit for bit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/quant/kv_codec.h>

#include "kernels/attention/levels.h"
#include "kernels/attention/split.h"
#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels::levels {
namespace {

using quant::KvFormat;
using quant::KvSide;

constexpr std::uint32_t kBlockSize = 32;
constexpr std::size_t kRows = 11;
constexpr std::size_t kScoresStride = 80;
constexpr float kHeadScale = 0.0123F;

std::vector<const KernelSet*> kernel_sets() {
  std::vector<const KernelSet*> sets{&avx2_kernels()};
  if (has_avx512_kernels()) sets.push_back(&avx512_kernels());
  return sets;
}

std::vector<std::uint32_t> head_dims(KvFormat format) {
  if (is_turbo_rows(format)) return {64, 80, 96, 128, 192, 208, 224, 256, 512};
  return {16, 48, 64, 80, 128, 144, 256, 512};
}

// A side of one head in two blocks that the table names in reverse.
class StoredSide {
 public:
  StoredSide(KvFormat format, KvSide which, std::uint32_t head_dim, std::uint32_t seed)
      : which_(which), head_dim_(head_dim) {
    const std::uint64_t stripe = quant::kv_head_stripe_bytes(format, kBlockSize, head_dim);
    bytes_.resize(2 * stripe);
    std::mt19937 random(seed);
    for (std::uint32_t position = 0; position < 2 * kBlockSize; ++position) {
      const std::size_t block = table_[position / kBlockSize];
      quant::KvStripe codec(format, which, kBlockSize, head_dim,
                            std::span(bytes_).subspan(block * stripe, stripe));
      const auto given = random_normal(random, head_dim);
      codec.encode(position % kBlockSize, {.scale = kHeadScale, .diagonal = {}, .mean = {}}, given);
      read_.emplace_back(head_dim);
      codec.decode(position % kBlockSize, {.scale = kHeadScale, .diagonal = {}, .mean = {}}, read_.back());
    }
    side = {.format = format,
            .stripes = bytes_.data(),
            .block_bytes = stripe,
            .row_bytes = quant::kv_row_bytes(format, head_dim),
            .header_bytes = quant::kv_header_bytes(format, head_dim),
            .scale = kHeadScale,
            .table = table_,
            .block_size = kBlockSize,
            .copies = nullptr};
  }

  [[nodiscard]] StoredTile tile(std::uint32_t count) const {
    StoredTile found;
    find_tile(side, which_, head_dim_, 0, count, found);
    for (Soon& soon : found.soon) soon = {bytes_.data(), 0, bytes_.data(), 0};
    return found;
  }
  // A level, from the value that the format's definition reads.
  [[nodiscard]] double level(const StoredTile& tile, std::size_t key, std::size_t dim) const {
    const double quotient = double{read_[key][dim]} / double{tile.steps[dim / quant::kKvRecordDims][key]};
    return std::round(quotient * 1024) / 1024;  // levels have at most nine bits behind the point
  }

  HeadSide side;

 private:
  const std::uint32_t table_[2] = {1, 0};
  KvSide which_;
  std::uint32_t head_dim_;
  std::vector<std::byte> bytes_;
  std::vector<std::vector<float>> read_;
};

class RoundedQueries {
 public:
  RoundedQueries(KvFormat format, std::uint32_t head_dim, std::uint32_t seed)
      : whole_(kRows * head_dim), upper_(kRows * head_dim), lower_(kRows * head_dim) {
    queries = {.stride = head_dim,
               .whole = whole_.data(),
               .upper = upper_.data(),
               .lower = lower_.data(),
               .sums = sums_,
               .factors = factors_};
    std::mt19937 random(seed);
    for (std::size_t row = 0; row < kRows; ++row) {
      round_row(format, 0.125F, random_normal(random, head_dim).data(), head_dim, row, queries);
    }
  }
  Queries queries;

 private:
  std::vector<std::int16_t> whole_;
  std::vector<std::int8_t> upper_;
  std::vector<std::int8_t> lower_;
  std::int32_t sums_[kRows * kMostRecords] = {};
  float factors_[kRows] = {};
};

// What docs/kernels.md defines.
float model_score(const StoredSide& side, const StoredTile& tile, const Queries& q, std::size_t row,
                  std::size_t key) {
  const bool halves = has_half_levels(tile.format);
  float dot = 0;
  for (std::size_t first = 0; first < tile.head_dim; first += quant::kKvRecordDims) {
    std::int64_t sum = 0;
    for (std::size_t dim = first; dim < tile.head_dim && dim < first + quant::kKvRecordDims; ++dim) {
      const double level = side.level(tile, key, dim) * (halves ? 2 : 1);
      sum += q.whole[row * q.stride + dim] * static_cast<std::int64_t>(level);
    }
    dot = std::fma(static_cast<float>(sum), tile.steps[first / quant::kKvRecordDims][key], dot);
  }
  return dot * q.factors[row];
}

TEST(AttentionLevels, ScoresAreExactSumsOfIntegersOnEveryInstructionSet) {
  for (const KvFormat format :
       {KvFormat::kTurbo4, KvFormat::kTurbo3, KvFormat::kTurbo2, KvFormat::kTurbo8i}) {
    for (const std::uint32_t head_dim : head_dims(format)) {
      const StoredSide side(format, KvSide::kKey, head_dim, head_dim);
      const RoundedQueries rounded(format, head_dim, 7);
      for (const std::uint32_t count : {64U, 37U}) {
        const StoredTile tile = side.tile(count);
        for (const KernelSet* set : kernel_sets()) {
          AlignedBuffer levels(tile_bytes(head_dim), 64);
          set->read_keys(tile, levels.data());
          std::vector<float> scores(kRows * kScoresStride);
          const Scores task{.queries = rounded.queries,
                            .head_dim = head_dim,
                            .keys = tile.keys,
                            .levels = levels.data(),
                            .key_groups = tile.key_groups,
                            .steps = tile.steps[0],
                            .halves = has_half_levels(format),
                            .scores = scores.data(),
                            .scores_stride = kScoresStride};
          set->score(task, 0, kRows);
          for (std::size_t row = 0; row < kRows; ++row) {
            for (std::size_t key = 0; key < count; ++key) {
              ASSERT_EQ(scores[row * kScoresStride + key], model_score(side, tile, rounded.queries, row, key))
                  << quant::to_string(format) << " head_dim " << head_dim << " row " << row << " key " << key;
            }
          }
          for (std::size_t few = 1; few <= set->few_rows; ++few) {
            std::vector<float> same(scores.size());
            Scores other = task;
            other.scores = same.data();
            set->score_few(tile, other, 2, few);
            for (std::size_t row = 2; row < 2 + few; ++row) {
              for (std::size_t key = 0; key < count; ++key) {
                ASSERT_EQ(same[row * kScoresStride + key], scores[row * kScoresStride + key])
                    << quant::to_string(format) << " head_dim " << head_dim << " rows " << few;
              }
            }
          }
        }
      }
    }
  }
}

// Weights of rows in 16 bits, in the order of pairs and in that of keys.
struct PairedWeights {
  explicit PairedWeights(std::int32_t most) {
    std::mt19937 random(5);
    std::uniform_int_distribution<std::int32_t> any(-most, most);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      // One row has the largest everywhere.
      plain[i] = static_cast<std::int16_t>(i / kKeyTile == 4 ? most : any(random));
      const std::size_t octet = i / kOctet * kOctet;
      paired[octet + i % 4 * 2 + i % kOctet / 4] = plain[i];
    }
    for (std::size_t row = 0; row < kRows; ++row) factors[row] = 0.01F * static_cast<float>(row + 1);
  }
  std::vector<std::int16_t> plain = std::vector<std::int16_t>(kRows * kKeyTile);
  std::vector<std::int16_t> paired = plain;
  float factors[kRows] = {};
};

TEST(AttentionLevels, WeightedIntegersAreExactSumsOnEveryInstructionSet) {
  for (const KvFormat format :
       {KvFormat::kTurbo4, KvFormat::kTurbo3, KvFormat::kTurbo2, KvFormat::kTurbo8i}) {
    PairedWeights weights(weight_steps(format));
    for (const std::uint32_t head_dim : head_dims(format)) {
      const StoredSide side(format, KvSide::kValue, head_dim, head_dim + 1);
      for (const std::uint32_t count : {64U, 16U, 40U}) {
        const StoredTile tile = side.tile(count);
        std::vector<float> expected(kRows * head_dim, 0.5F);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          std::int64_t sum = 0;
          for (std::size_t key = 0; key < count; ++key) {
            const double integer = side.level(tile, key, i % head_dim) / double{value_unit(format)};
            sum += weights.plain[i / head_dim * kKeyTile + key] * static_cast<std::int64_t>(integer);
          }
          expected[i] = std::fma(static_cast<float>(sum), weights.factors[i / head_dim], expected[i]);
        }
        for (const KernelSet* set : kernel_sets()) {
          AlignedBuffer levels(tile_bytes(head_dim), 64);
          set->read_integers(tile, levels.data());
          for (const bool few : {false, true}) {
            if (few && (set->few_rows == 0 || head_dim % 64 != 0)) continue;
            std::vector<float> values(kRows * head_dim, 0.5F);
            for (std::size_t first = 0; first < head_dim; first += quant::kKvRecordDims) {
              const WeightedIntegers task{
                  .levels = levels.data(),
                  .value_stride = tile.value_stride,
                  .keys = tile.keys,
                  .weights = {weights.paired.data(), weights.factors},
                  .values = values.data() + first,
                  .stride = head_dim,
                  .first = first,
                  .dims = std::min<std::size_t>(head_dim - first, quant::kKvRecordDims)};
              const std::size_t most = few ? set->few_rows : kRows;
              for (std::size_t row = 0; row < kRows; row += most) {
                const std::size_t rows = std::min(most, kRows - row);
                few ? set->add_integers_few(tile, task, row, rows) : set->add_integers(task, row, rows);
              }
            }
            ASSERT_EQ(values, expected) << quant::to_string(format) << " head_dim " << head_dim << " keys "
                                        << count << " few " << few;
          }
        }
      }
    }
  }
}

TEST(AttentionLevels, WeightedE4m3ValuesAreChainsInTheOrderOfKeysOnEveryInstructionSet) {
  std::mt19937 random(5);
  const auto weights = random_normal(random, kRows * kKeyTile);
  for (const KvFormat format : {KvFormat::kTurbo8, KvFormat::kFp8}) {
    for (const std::uint32_t head_dim : head_dims(format)) {
      const StoredSide side(format, KvSide::kValue, head_dim, head_dim + 1);
      const StoredTile tile = side.tile(61);
      std::vector<float> expected(kRows * head_dim, 0.5F);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        for (std::size_t key = 3; key < 61; ++key) {
          const auto level = static_cast<float>(side.level(tile, key, i % head_dim));
          expected[i] = std::fma(weights[i / head_dim * kKeyTile + key], level, expected[i]);
        }
      }
      for (const KernelSet* set : kernel_sets()) {
        AlignedBuffer levels(tile_bytes(head_dim), 64);
        set->read_values(tile, levels.data());
        for (const bool few : {false, true}) {
          if (few && (set->few_rows == 0 || head_dim % 64 != 0)) continue;
          std::vector<float> values(kRows * head_dim, 0.5F);
          for (std::size_t first = 0; first < head_dim; first += quant::kKvRecordDims) {
            const Weighted task{.levels = levels.data(),
                                .value_stride = tile.value_stride,
                                .weights = weights.data(),
                                .values = values.data() + first,
                                .stride = head_dim,
                                .first = first,
                                .dims = std::min<std::size_t>(head_dim - first, quant::kKvRecordDims)};
            const std::size_t most = few ? set->few_rows : 8;
            for (std::size_t row = 0; row < kRows; row += most) {
              const std::size_t rows = std::min(most, kRows - row);
              few ? set->add_few(tile, task, row, rows, 3, 61) : set->add(task, row, rows, 3, 61);
            }
          }
          ASSERT_EQ(values, expected)
              << quant::to_string(format) << " head_dim " << head_dim << " few " << few;
        }
      }
    }
  }
}

// One row of 64.
struct RoundedRow {
  explicit RoundedRow(const std::vector<float>& q, KvFormat format = KvFormat::kTurbo8i) {
    const Queries to{
        .stride = 64, .whole = whole, .upper = upper, .lower = lower, .sums = sums, .factors = &factor};
    round_row(format, 1.0F, q.data(), q.size(), 0, to);
  }
  std::int16_t whole[64] = {};
  std::int8_t upper[64] = {};
  std::int8_t lower[64] = {};
  std::int32_t sums[kMostRecords] = {};
  float factor = 0;
};

void expect_rounded(const std::vector<float>& q, const RoundedRow& row) {
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(row.whole[i]) * double{row.factor}, q[i], 0.50001 * double{row.factor})
        << i;
    EXPECT_EQ(row.whole[i], 256 * row.upper[i] + row.lower[i]) << i;
    sum += row.whole[i];
  }
  EXPECT_EQ(row.sums[0], sum);
}

TEST(AttentionLevels, QueriesAreRoundedToHalfAStepOfTheirLargest) {
  std::mt19937 random(3);
  for (const float size : {1.0F, 1e-20F, 0x1p-95F, 1e30F, 3.4e38F / 8}) {
    auto q = random_normal(random, 64);
    for (float& x : q) x *= size;
    const RoundedRow best(q);
    expect_rounded(q, best);
    const ForceAvx2 avx2;
    const RoundedRow same(q);
    EXPECT_TRUE(std::equal(best.whole, best.whole + 64, same.whole));
    EXPECT_EQ(best.factor, same.factor);
  }
}

TEST(AttentionLevels, TheLargestOfARowBecomesTheLargestInteger) {
  std::vector<float> q(64, 0.25F);
  q[17] = -3.0F;
  const RoundedRow row(q);
  EXPECT_EQ(row.whole[17], -static_cast<int>(kQuerySteps));
  EXPECT_EQ(row.upper[17], -127);
  EXPECT_EQ(row.lower[17], 0);
}

TEST(AttentionLevels, TheFactorOfHalfLevelsIsHalved) {
  const std::vector<float> q(64, 1.0F);
  EXPECT_EQ(RoundedRow(q, KvFormat::kTurbo4).factor * 2, RoundedRow(q, KvFormat::kTurbo3).factor);
}

TEST(AttentionLevels, ZeroAndVanishingRowsBecomeZeros) {
  for (const float x : {0.0F, -0.0F, std::numeric_limits<float>::denorm_min(), 0x1p-120F}) {
    const RoundedRow row(std::vector<float>(64, x));
    for (const std::int16_t whole : row.whole) EXPECT_EQ(whole, 0);
    EXPECT_EQ(row.sums[0], 0);
    EXPECT_TRUE(std::isfinite(row.factor));
  }
}

TEST(AttentionLevels, RowsThatAreNotFiniteHaveNoNumberAsFactor) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    std::vector<float> q(64, 1.0F);
    q[63] = x;
    EXPECT_TRUE(std::isnan(RoundedRow(q).factor));
  }
}

}  // namespace
}  // namespace metrale::kernels::levels
