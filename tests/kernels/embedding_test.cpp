// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/embedding.h>

#include "kernels/support/isa.h"
#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

EmbeddingArgs embedding_args(const std::uint32_t& rows, const std::vector<std::int32_t>& ids,
                             const Elements& table, std::uint32_t width, const Elements& out) {
  EmbeddingArgs args{};
  args.rows = address(&rows);
  args.token_ids = address(ids);
  args.table = table.address();
  args.out = out.address();
  args.max_rows = static_cast<std::uint32_t>(ids.size());
  args.width = width;
  args.vocab = static_cast<std::uint32_t>(table.size() / width);
  args.table_type = table.type();
  args.out_type = out.type();
  return args;
}

// Every value of a table of one row, converted by the kernel.
Elements convert(const Elements& table, quant::ElementType to) {
  const std::uint32_t rows = 1;
  const std::vector<std::int32_t> ids{0};
  Elements out(to, table.size());
  run_kernel(test_pool(), kEmbedding,
             embedding_args(rows, ids, table, static_cast<std::uint32_t>(table.size()), out));
  return out;
}

TEST(Embedding, CopiesTheRowOfEachToken) {
  std::mt19937 random(1);
  for (const std::uint32_t width : {1U, 16U, 17U, 576U, 1025U}) {
    for (const quant::ElementType from : kAllTypes) {
      for (const quant::ElementType to : kAllTypes) {
        const Elements table(from, random_normal(random, std::size_t{5} * width));
        const std::vector<std::int32_t> ids{4, 0, 2, 2};
        const std::uint32_t rows = 4;
        Elements out(to, std::size_t{4} * width);

        run_kernel(test_pool(), kEmbedding, embedding_args(rows, ids, table, width, out));

        Elements expected(to, out.size());
        for (std::size_t i = 0; i < out.size(); ++i) {
          expected.set(i, table.get(static_cast<std::size_t>(ids[i / width]) * width + i % width));
        }
        ASSERT_EQ(out.bytes(), expected.bytes()) << "width " << width;
      }
    }
  }
}

// The vector conversions of all kernels against the scalar ones, for every 16-bit value.
TEST(Embedding, MultipliesEveryElementByTheScale) {
  std::mt19937 random(2);
  constexpr std::uint32_t kWidth = 37;
  for (const quant::ElementType to : kAllTypes) {
    const Elements table(quant::ElementType::kBf16, random_normal(random, std::size_t{3} * kWidth));
    const std::vector<std::int32_t> ids{2, 1};
    const std::uint32_t rows = 2;
    Elements out(to, std::size_t{2} * kWidth);
    EmbeddingArgs args = embedding_args(rows, ids, table, kWidth, out);
    args.scale = 25.25F;

    run_kernel(test_pool(), kEmbedding, args);

    Elements expected(to, out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      expected.set(i, 25.25F * table.get(static_cast<std::size_t>(ids[i / kWidth]) * kWidth + i % kWidth));
    }
    EXPECT_EQ(out.bytes(), expected.bytes());
  }
}

TEST(Embedding, WidensEverySixteenBitValueAsTheScalarCodeDoes) {
  for (const quant::ElementType type : {quant::ElementType::kBf16, quant::ElementType::kF16}) {
    Elements table(type, 65536);
    for (std::uint32_t bits = 0; bits < 65536; ++bits) table.set_bits(bits, bits);
    Elements expected(quant::ElementType::kF32, table.size());
    for (std::size_t i = 0; i < table.size(); ++i) expected.set(i, table.get(i));
    EXPECT_EQ(convert(table, quant::ElementType::kF32).bytes(), expected.bytes()) << to_string(type);
    const ForceAvx2 avx2;
    EXPECT_EQ(convert(table, quant::ElementType::kF32).bytes(), expected.bytes()) << to_string(type);
  }
}

TEST(Embedding, NarrowsAsTheScalarCodeDoes) {
  // Every upper half of a float with lower halves around ties, which covers NaN, infinity and subnormals.
  Elements table(quant::ElementType::kF32, std::size_t{65536} * 8);
  std::size_t next = 0;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    for (const std::uint32_t lower :
         {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U}) {
      table.set_bits(next++, upper << 16 | lower);
    }
  }
  for (const quant::ElementType type : {quant::ElementType::kBf16, quant::ElementType::kF16}) {
    Elements expected(type, table.size());
    for (std::size_t i = 0; i < table.size(); ++i) expected.set(i, table.get(i));
    EXPECT_EQ(convert(table, type).bytes(), expected.bytes()) << to_string(type);
    const ForceAvx2 avx2;
    EXPECT_EQ(convert(table, type).bytes(), expected.bytes()) << to_string(type);
  }
}

TEST(Embedding, RejectsATokenOutsideTheVocabulary) {
  const Elements table(quant::ElementType::kF32, std::size_t{8});
  const std::uint32_t rows = 3;
  Elements out(quant::ElementType::kF32, std::size_t{6});
  for (const std::int32_t bad : {-1, 4}) {
    const std::vector<std::int32_t> ids{0, 3, bad};
    EXPECT_THAT([&] { run_kernel(test_pool(), kEmbedding, embedding_args(rows, ids, table, 2, out)); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(
                    "token id " + std::to_string(bad) + " in row 2 is outside the vocabulary of 4")));
  }
}

TEST(Embedding, RejectsMoreRowsThanTheLaunchWasMadeFor) {
  const Elements table(quant::ElementType::kF32, std::size_t{8});
  const std::uint32_t rows = 3;
  const std::vector<std::int32_t> ids{0, 1};
  Elements out(quant::ElementType::kF32, std::size_t{6});
  EXPECT_THAT([&] { run_kernel(test_pool(), kEmbedding, embedding_args(rows, ids, table, 2, out)); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("embedding: 3 rows")));
}

}  // namespace
}  // namespace metrale::kernels
