// SPDX-License-Identifier: Apache-2.0
// Exact by construction: how a step is cut, laid out and divided never shows in a query's bits.
#include <limits>

#include <gtest/gtest.h>

#include "kernels/support/attention_case.h"
#include "kernels/support/isa.h"

namespace metrale::kernels {
namespace {

// A chunk of bytes of `rows` query rows.
std::vector<std::byte> rows_of(const AttentionShape& shape, const Elements& out, std::size_t first,
                               std::size_t count) {
  const std::size_t row_bytes =
      std::size_t{shape.num_q_heads} * shape.head_dim * quant::element_bytes(shape.type);
  const auto begin = out.bytes().begin() + static_cast<std::ptrdiff_t>(first * row_bytes);
  return {begin, begin + static_cast<std::ptrdiff_t>(count * row_bytes)};
}

// The prompt of sequences[0] in chunks, each after the cache holds what came before.
std::vector<std::byte> in_chunks(const AttentionShape& shape, const std::vector<Sequence>& sequences,
                                 std::uint32_t tokens, std::uint32_t chunk, const AttentionRun& how = {}) {
  std::vector<std::byte> all;
  for (std::uint32_t done = 0; done < tokens;) {
    const std::uint32_t now = std::min(chunk, tokens - done);
    done += now;
    const Elements out = run_attention(shape, sequences, {{done, now}}, how);
    all.insert(all.end(), out.bytes().begin(), out.bytes().end());
  }
  return all;
}

const std::vector<AttentionShape>& exact_shapes() {
  static const std::vector<AttentionShape> shapes{
      {.num_q_heads = 3, .num_kv_heads = 1, .head_dim = 64, .type = quant::ElementType::kBf16},
      {.num_q_heads = 8, .num_kv_heads = 2, .head_dim = 80, .v_format = quant::KvFormat::kFp32},
      {.num_q_heads = 2, .num_kv_heads = 2, .head_dim = 24, .k_format = quant::KvFormat::kFp32},
      {.num_q_heads = 7, .num_kv_heads = 1, .head_dim = 17, .type = quant::ElementType::kF16},
      {.num_q_heads = 3, .num_kv_heads = 1, .head_dim = 64, .type = quant::ElementType::kBf16, .window = 33},
      {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 20, .window = 530},
      {.num_q_heads = 4,
       .num_kv_heads = 2,
       .k_format = quant::KvFormat::kTurbo4,
       .v_format = quant::KvFormat::kTurbo4},
      {.num_q_heads = 3,
       .num_kv_heads = 1,
       .head_dim = 80,
       .k_format = quant::KvFormat::kTurbo3,
       .v_format = quant::KvFormat::kTurbo3,
       .window = 100},
      {.num_q_heads = 4,
       .num_kv_heads = 1,
       .type = quant::ElementType::kBf16,
       .k_format = quant::KvFormat::kTurbo2,
       .v_format = quant::KvFormat::kNvfp4},
      {.num_q_heads = 2,
       .num_kv_heads = 1,
       .head_dim = 96,
       .k_format = quant::KvFormat::kFp8,
       .v_format = quant::KvFormat::kTurbo8i},
      {.num_q_heads = 7,
       .num_kv_heads = 1,
       .head_dim = 192,
       .k_format = quant::KvFormat::kTurbo8i,
       .v_format = quant::KvFormat::kTurbo8},
      {.num_q_heads = 6,
       .num_kv_heads = 2,
       .head_dim = 128,
       .type = quant::ElementType::kF16,
       .k_format = quant::KvFormat::kTurbo3,
       .v_format = quant::KvFormat::kTurbo4,
       .window = 150},
  };
  return shapes;
}

TEST(PagedAttentionExactness, ChunkingOfAPromptDoesNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    const auto sequences = random_sequences(1, shape, {{620, 620}});
    const auto whole = in_chunks(shape, sequences, 620, 620);
    for (const std::uint32_t chunk : {7U, 64U, 100U, 512U}) {
      EXPECT_EQ(in_chunks(shape, sequences, 620, chunk), whole) << "chunks of " << chunk;
    }
  }
}

TEST(PagedAttentionExactness, DecodingTokenByTokenGivesThePrefillsBits) {
  const AttentionShape& shape = exact_shapes()[0];
  const auto sequences = random_sequences(2, shape, {{530, 530}});
  const auto whole = in_chunks(shape, sequences, 530, 530);
  EXPECT_EQ(in_chunks(shape, sequences, 530, 1), whole);
  EXPECT_EQ(in_chunks(shape, sequences, 530, 1, {.workspace = true}), whole);
}

TEST(PagedAttentionExactness, DecodingTokenByTokenGivesThePrefillsBitsInEveryFormat) {
  for (const AttentionShape& shape : exact_shapes()) {
    const auto sequences = random_sequences(2, shape, {{90, 90}});
    EXPECT_EQ(in_chunks(shape, sequences, 90, 1), in_chunks(shape, sequences, 90, 90));
  }
}

TEST(PagedAttentionExactness, TheRestOfTheBatchDoesNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{700, 1}, {33, 33}, {1, 1}, {513, 7}, {64, 1}, {600, 150}};
    const auto sequences = random_sequences(3, shape, seqs);
    const Elements together = run_attention(shape, sequences, seqs);
    std::size_t first = 0;
    for (std::size_t s = 0; s < seqs.size(); ++s) {
      const Elements alone = run_attention(shape, {sequences[s]}, {seqs[s]});
      EXPECT_EQ(rows_of(shape, together, first, seqs[s].queries), alone.bytes()) << "sequence " << s;
      first += seqs[s].queries;
    }
  }
}

TEST(PagedAttentionExactness, ThreadsAndWorkspaceDoNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{1600, 2}, {513, 1}, {40, 1}};
    const auto sequences = random_sequences(4, shape, seqs);
    const Elements expected = run_attention(shape, sequences, seqs, {.threads = 1});
    for (const unsigned threads : {1U, 2U, 3U, 4U}) {
      for (const bool workspace : {false, true}) {
        const Elements out =
            run_attention(shape, sequences, seqs, {.threads = threads, .workspace = workspace});
        EXPECT_EQ(out.bytes(), expected.bytes()) << threads << " threads, workspace " << workspace;
      }
    }
  }
}

TEST(PagedAttentionExactness, BlockSizeDoesNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{1030, 3}, {129, 129}, {15, 1}};
    const auto sequences = random_sequences(5, shape, seqs);
    const Elements expected = run_attention(shape, sequences, seqs, {.block_size = 16});
    for (const std::uint32_t block_size : {1U, 7U, 32U, 64U, 128U, 1000U}) {
      if (shape.v_format == quant::KvFormat::kTurbo3 && block_size % 8 != 0) continue;
      const Elements out = run_attention(shape, sequences, seqs, {.block_size = block_size});
      EXPECT_EQ(out.bytes(), expected.bytes()) << "block_size " << block_size;
    }
  }
}

TEST(PagedAttentionExactness, OrderOfBlocksInThePoolDoesNotShow) {
  const AttentionShape& shape = exact_shapes()[1];
  const std::vector<SeqShape> seqs{{700, 20}, {100, 1}};
  const auto sequences = random_sequences(6, shape, seqs);
  const Elements expected = run_attention(shape, sequences, seqs, {.block_order_seed = 1});
  for (std::uint32_t seed = 2; seed < 6; ++seed) {
    const Elements out = run_attention(shape, sequences, seqs, {.block_order_seed = seed});
    EXPECT_EQ(out.bytes(), expected.bytes()) << "block order " << seed;
  }
}

TEST(PagedAttentionExactness, InstructionSetDoesNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{700, 20}, {100, 1}, {5, 5}};
    const auto sequences = random_sequences(7, shape, seqs);
    const Elements best = run_attention(shape, sequences, seqs);
    const ForceAvx2 avx2;
    EXPECT_EQ(run_attention(shape, sequences, seqs).bytes(), best.bytes());
  }
}

TEST(PagedAttentionExactness, TokensBeforeTheWindowDoNotShow) {
  const AttentionShape shape{.num_q_heads = 12, .num_kv_heads = 1, .head_dim = 32, .window = 50};
  auto sequences = random_sequences(9, shape, {{700, 60}});
  const Elements clean = run_attention(shape, sequences, {{700, 60}});
  std::fill_n(sequences[0].k_given.begin(), 600 * 32, std::numeric_limits<float>::quiet_NaN());
  std::fill_n(sequences[0].v_given.begin(), 600 * 32, std::numeric_limits<float>::infinity());

  const Elements out = run_attention(shape, sequences, {{700, 60}});

  // The query at 649 is the first that sees none of the 600.
  EXPECT_EQ(rows_of(shape, out, 9, 51), rows_of(shape, clean, 9, 51));
  EXPECT_TRUE(std::isnan(out.get(8 * 12 * 32)));
}

TEST(PagedAttentionExactness, AWindowOfTheWholeContextIsNone) {
  AttentionShape shape = exact_shapes()[0];
  const auto sequences = random_sequences(10, shape, {{620, 620}});
  const auto whole = in_chunks(shape, sequences, 620, 620);
  shape.window = 620;
  EXPECT_EQ(in_chunks(shape, sequences, 620, 620), whole);
}

TEST(PagedAttentionExactness, AQueryThatIsNotFiniteShowsInItsRowAlone) {
  for (const AttentionShape& shape : exact_shapes()) {
    for (const float x : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      auto sequences = random_sequences(12, shape, {{40, 40}});
      const Elements clean = run_attention(shape, sequences, {{40, 40}});
      sequences[0].q[std::size_t{20} * shape.num_q_heads * shape.head_dim + 3] = x;

      const Elements out = run_attention(shape, sequences, {{40, 40}});

      EXPECT_EQ(rows_of(shape, out, 0, 20), rows_of(shape, clean, 0, 20));
      EXPECT_EQ(rows_of(shape, out, 21, 19), rows_of(shape, clean, 21, 19));
      EXPECT_TRUE(std::isnan(out.get(std::size_t{20} * shape.num_q_heads * shape.head_dim)));
    }
  }
}

// The pool's unused slots are NaN in every case; here later tokens of the same step are not finite either.
TEST(PagedAttentionExactness, LaterTokensDoNotShow) {
  for (const AttentionShape& shape : exact_shapes()) {
    auto sequences = random_sequences(8, shape, {{90, 90}});
    const Elements clean = run_attention(shape, sequences, {{90, 90}});
    const std::size_t width = std::size_t{shape.num_kv_heads} * shape.head_dim;
    for (std::size_t i = 70 * width; i < 71 * width; ++i) {
      sequences[0].k_given[i] = std::numeric_limits<float>::quiet_NaN();
      sequences[0].v_given[i] = std::numeric_limits<float>::infinity();
    }

    const Elements out = run_attention(shape, sequences, {{90, 90}});

    EXPECT_EQ(rows_of(shape, out, 0, 70), rows_of(shape, clean, 0, 70));
    EXPECT_TRUE(std::isnan(out.get(70 * std::size_t{shape.num_q_heads} * shape.head_dim)));
  }
}

}  // namespace
}  // namespace metrale::kernels
