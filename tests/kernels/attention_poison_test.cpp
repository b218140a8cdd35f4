// SPDX-License-Identifier: Apache-2.0
// Attention over blocks of every pair of formats that were copied or poisoned (every bit set: NaN): a row
// that sees what is no number never gives one, and what no row sees never shows.
#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/support/attention_case.h"

namespace metrale::kernels {
namespace {

using quant::KvSide;

constexpr std::byte kPoison{0xFF};

// How a step's rows come to the kernel: one by one, few that share keys in registers, many in tiles; and
// through the workspace.
struct Way {
  std::uint32_t context;
  std::uint32_t queries;
  bool workspace = false;
};
constexpr Way kWays[] = {{40, 1}, {40, 2}, {48, 12}};
constexpr Way kSplits = {530, 1, true};

struct Formats {
  quant::KvFormat k;
  quant::KvFormat v;
  std::uint32_t head_dim;
};

// One sequence over a pool with room for a second copy of its blocks, whose bytes a test may change.
class PoisonedStep {
 public:
  PoisonedStep(const Formats& formats, const Way& way, std::uint32_t window = 0)
      : shape_{.num_q_heads = 4,
               .num_kv_heads = 1,
               .head_dim = formats.head_dim,
               .k_format = formats.k,
               .v_format = formats.v,
               .window = window},
        way_(way),
        step_(shape_, {random_tokens(shape_, way.context)}, {{way.context, way.queries}},
              {.workspace = way.workspace}),
        k_(step_.k_pool()),
        v_(step_.v_pool()) {
    k_.resize(2 * k_.size(), kPoison);
    v_.resize(2 * v_.size(), kPoison);
    step_.args.k_pool = address(k_);
    step_.args.v_pool = address(v_);
  }

  // [query token][q_head][dim]
  std::vector<float> run() {
    step_.run();
    return step_.out.floats();
  }
  [[nodiscard]] std::size_t row_width() const { return std::size_t{shape_.num_q_heads} * shape_.head_dim; }
  [[nodiscard]] std::uint32_t blocks() const { return (way_.context + kBlockSize - 1) / kBlockSize; }
  // The first position that the step's first row sees.
  [[nodiscard]] std::uint32_t first_seen() const { return way_.context - way_.queries + 1 - shape_.window; }
  [[nodiscard]] std::uint32_t last_position() const { return way_.context - 1; }

  void poison_block(KvSide side, std::uint32_t position) {
    const std::size_t bytes = side_bytes(side);
    std::fill_n(pool(side).begin() + static_cast<std::ptrdiff_t>(block_of(position) * bytes), bytes, kPoison);
  }
  // Stores a vector of NaN: the tokens beside it stay as they are.
  void poison_token(KvSide side, std::uint32_t position) {
    const std::vector<float> nan(shape_.head_dim, std::numeric_limits<float>::quiet_NaN());
    const std::size_t stripe = quant::kv_head_stripe_bytes(format(side), kBlockSize, shape_.head_dim);
    for (std::size_t head = 0; head < shape_.num_kv_heads; ++head) {
      const std::size_t at = (block_of(position) * shape_.num_kv_heads + head) * stripe;
      quant::KvStripe(format(side), side, kBlockSize, shape_.head_dim,
                      std::span(pool(side)).subspan(at, stripe))
          .encode(position % kBlockSize, {}, nan);
    }
  }
  // The sequence goes on in copies of its blocks, and nothing is left of the first ones.
  void move_to_copies() {
    const auto moved = static_cast<std::uint32_t>(blocks());
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      const auto half = static_cast<std::ptrdiff_t>(pool(side).size() / 2);
      std::copy_n(pool(side).begin(), half, pool(side).begin() + half);
      std::fill_n(pool(side).begin(), half, kPoison);
    }
    for (std::uint32_t i = 0; i < moved; ++i) table()[i] += moved;
  }

  // Everything as it was at first.
  void heal() {
    std::ranges::copy(step_.k_pool(), k_.begin());
    std::ranges::copy(step_.v_pool(), v_.begin());
  }

 private:
  static constexpr std::uint32_t kBlockSize = 16;

  static Sequence random_tokens(const AttentionShape& shape, std::uint32_t context) {
    std::mt19937 random(31);
    const std::size_t width = std::size_t{context} * shape.head_dim;
    return {.q = random_normal(random, width * shape.num_q_heads),
            .k_given = random_normal(random, width * shape.num_kv_heads),
            .v_given = random_normal(random, width * shape.num_kv_heads)};
  }

  [[nodiscard]] quant::KvFormat format(KvSide side) const {
    return side == KvSide::kKey ? shape_.k_format : shape_.v_format;
  }
  [[nodiscard]] std::vector<std::byte>& pool(KvSide side) { return side == KvSide::kKey ? k_ : v_; }
  [[nodiscard]] std::size_t side_bytes(KvSide side) const {
    return quant::kv_side_bytes(format(side), kBlockSize, shape_.num_kv_heads, shape_.head_dim);
  }
  [[nodiscard]] std::uint32_t* table() {
    return step_.tables.data() + std::size_t{step_.table_rows[0]} * step_.args.table_stride;
  }
  [[nodiscard]] std::size_t block_of(std::uint32_t position) { return table()[position / kBlockSize]; }

  AttentionShape shape_;
  Way way_;
  AttentionStep step_;
  std::vector<std::byte> k_;
  std::vector<std::byte> v_;
};

std::size_t count_finite(std::span<const float> values) {
  return static_cast<std::size_t>(std::ranges::count_if(values, [](float v) { return std::isfinite(v); }));
}

// Formats that attention takes by levels: few rows have code of their own for heads of 64 dimensions.
bool has_levels(const quant::KvFormatInfo& info) {
  return info.header == quant::KvHeader::kTurboRows || info.header == quant::KvHeader::kRecordScale;
}

// Calls body(formats, way) for every pair of formats, and every way that serves it.
template <class Body>
void for_pairs(const Body& body) {
  for (const quant::KvFormatInfo& k : quant::kKvFormats) {
    for (const quant::KvFormatInfo& v : quant::kKvFormats) {
      for (const std::uint32_t head_dim : {80U, 64U}) {
        if (head_dim == 64 && !(has_levels(k) && has_levels(v))) continue;
        SCOPED_TRACE(testing::Message() << k.name << ":" << v.name << " head_dim " << head_dim);
        const Formats formats{k.format, v.format, head_dim};
        for (const Way& way : kWays) {
          SCOPED_TRACE(testing::Message() << way.queries << " rows of " << way.context);
          body(formats, way);
        }
        if (k.format == v.format) body(formats, kSplits);
      }
    }
  }
}

TEST(PagedAttentionPoison, ARowThatSeesAPoisonedBlockGivesNoNumber) {
  for_pairs([](const Formats& formats, const Way& way) {
    PoisonedStep step(formats, way);
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      step.heal();
      step.poison_block(side, 20);
      EXPECT_EQ(count_finite(step.run()), 0U) << (side == KvSide::kKey ? "keys" : "values");
    }
  });
}

TEST(PagedAttentionPoison, WhatLiesBeforeEveryWindowDoesNotShow) {
  for_pairs([](const Formats& formats, const Way& way) {
    PoisonedStep step(formats, way, 20);
    const std::vector<float> expected = step.run();
    ASSERT_EQ(count_finite(expected), expected.size());
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      for (std::uint32_t p = 0; p < step.first_seen(); ++p) step.poison_token(side, p);
      for (std::uint32_t p = 0; p + 16 <= step.first_seen(); p += 16) step.poison_block(side, p);
    }
    EXPECT_EQ(step.run(), expected);
  });
}

TEST(PagedAttentionPoison, ALaterTokenShowsInItsOwnRowAlone) {
  for_pairs([](const Formats& formats, const Way& way) {
    PoisonedStep step(formats, way);
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      step.heal();
      std::vector<float> expected = step.run();
      step.poison_token(side, step.last_position());
      std::vector<float> got = step.run();
      EXPECT_EQ(count_finite(std::span(got).last(step.row_width())), 0U);
      got.resize(got.size() - step.row_width());
      expected.resize(got.size());
      EXPECT_EQ(got, expected);
    }
  });
}

TEST(PagedAttentionPoison, CopiedBlocksGiveTheBitsOfTheFirstOnes) {
  for_pairs([](const Formats& formats, const Way& way) {
    PoisonedStep step(formats, way);
    const std::vector<float> expected = step.run();
    ASSERT_EQ(count_finite(expected), expected.size());
    step.move_to_copies();
    EXPECT_EQ(step.run(), expected);
  });
}

}  // namespace
}  // namespace metrale::kernels
