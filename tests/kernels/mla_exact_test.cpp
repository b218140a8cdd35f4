// SPDX-License-Identifier: Apache-2.0
// Latent attention is exact by construction: how a step is cut, laid out and divided never shows in a query's
// bits, and what a row does not see never shows at all.
#include <limits>

#include <gtest/gtest.h>

#include "kernels/support/isa.h"
#include "kernels/support/mla_case.h"

namespace metrale::kernels {
namespace {

using quant::KvFormat;

std::size_t row_width(const MlaShape& shape) {
  return std::size_t{shape.num_heads} * shape.latent_dim;
}

std::vector<std::byte> rows_of(const MlaShape& shape, const Elements& out, std::size_t first,
                               std::size_t count) {
  const std::size_t row_bytes = row_width(shape) * quant::element_bytes(shape.type);
  const auto begin = out.bytes().begin() + static_cast<std::ptrdiff_t>(first * row_bytes);
  return {begin, begin + static_cast<std::ptrdiff_t>(count * row_bytes)};
}

// The prompt of the first sequence in chunks, each after the cache holds what came before.
std::vector<std::byte> in_chunks(const MlaShape& shape, const MlaSequences& sequences, std::uint32_t tokens,
                                 std::uint32_t chunk, const AttentionRun& how = {}) {
  std::vector<std::byte> all;
  for (std::uint32_t done = 0; done < tokens;) {
    const std::uint32_t now = std::min(chunk, tokens - done);
    done += now;
    const Elements out = run_mla(shape, sequences, {{done, now}}, how);
    all.insert(all.end(), out.bytes().begin(), out.bytes().end());
  }
  return all;
}

const std::vector<MlaShape>& exact_shapes() {
  static const std::vector<MlaShape> shapes{
      {.num_heads = 3, .type = quant::ElementType::kBf16},
      {.num_heads = 70, .rope_dim = 32, .latent_format = KvFormat::kFp32, .rope_format = KvFormat::kFp16},
      {.num_heads = 16,
       .latent_dim = 128,
       .rope_dim = 64,
       .type = quant::ElementType::kF16,
       .latent_format = KvFormat::kTurbo4,
       .rope_format = KvFormat::kTurbo4},
      {.num_heads = 5,
       .rope_dim = 48,
       .latent_format = KvFormat::kTurbo3,
       .rope_format = KvFormat::kFp8,
       .window = 100},
      {.num_heads = 2, .latent_dim = 80, .latent_format = KvFormat::kNvfp4, .window = 530},
  };
  return shapes;
}

TEST(MlaExactness, ChunkingOfAPromptDoesNotShow) {
  for (const MlaShape& shape : exact_shapes()) {
    const auto sequences = random_mla(1, shape, {{620, 620}});
    const auto whole = in_chunks(shape, sequences, 620, 620);
    for (const std::uint32_t chunk : {7U, 64U, 100U, 512U}) {
      EXPECT_EQ(in_chunks(shape, sequences, 620, chunk), whole) << "chunks of " << chunk;
    }
  }
}

TEST(MlaExactness, DecodingTokenByTokenGivesThePrefillsBits) {
  const MlaShape& shape = exact_shapes()[0];
  const auto sequences = random_mla(2, shape, {{530, 530}});
  const auto whole = in_chunks(shape, sequences, 530, 530);
  EXPECT_EQ(in_chunks(shape, sequences, 530, 1), whole);
  EXPECT_EQ(in_chunks(shape, sequences, 530, 1, {.workspace = true}), whole);
}

TEST(MlaExactness, TheRestOfTheBatchDoesNotShow) {
  for (const MlaShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{700, 1}, {33, 33}, {1, 1}, {513, 7}, {64, 1}, {600, 90}};
    const auto sequences = random_mla(3, shape, seqs);
    const Elements together = run_mla(shape, sequences, seqs);
    std::size_t first = 0;
    for (std::size_t s = 0; s < seqs.size(); ++s) {
      const Elements alone = run_mla(shape, {{sequences.latent[s]}, {sequences.rope[s]}}, {seqs[s]});
      EXPECT_EQ(rows_of(shape, together, first, seqs[s].queries), alone.bytes()) << "sequence " << s;
      first += seqs[s].queries;
    }
  }
}

// A head has the same bits whatever heads stand beside it.
TEST(MlaExactness, OtherHeadsDoNotShow) {
  const MlaShape many{.num_heads = 70};
  const MlaShape one{.num_heads = 1};
  const std::vector<SeqShape> seqs{{600, 2}};
  auto sequences = random_mla(4, many, seqs);
  const Elements together = run_mla(many, sequences, seqs);
  for (const std::size_t head : {0U, 34U, 35U, 69U}) {
    MlaSequences alone = sequences;
    alone.latent[0].q.clear();
    alone.rope[0].q.clear();
    for (std::size_t t = 0; t < 600; ++t) {
      const auto* latent = sequences.latent[0].q.data() + (t * 70 + head) * 64;
      const auto* rope = sequences.rope[0].q.data() + (t * 70 + head) * 16;
      alone.latent[0].q.insert(alone.latent[0].q.end(), latent, latent + 64);
      alone.rope[0].q.insert(alone.rope[0].q.end(), rope, rope + 16);
    }
    const Elements out = run_mla(one, alone, seqs);
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out.get(i), together.get((i / 64 * 70 + head) * 64 + i % 64)) << "head " << head;
    }
  }
}

TEST(MlaExactness, ThreadsAndWorkspaceDoNotShow) {
  for (const MlaShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{1600, 2}, {513, 1}, {40, 1}};
    const auto sequences = random_mla(5, shape, seqs);
    const Elements expected = run_mla(shape, sequences, seqs, {.threads = 1});
    for (const unsigned threads : {1U, 2U, 4U}) {
      for (const bool workspace : {false, true}) {
        const Elements out = run_mla(shape, sequences, seqs, {.threads = threads, .workspace = workspace});
        EXPECT_EQ(out.bytes(), expected.bytes()) << threads << " threads, workspace " << workspace;
      }
    }
  }
}

TEST(MlaExactness, BlockSizeAndOrderDoNotShow) {
  for (const MlaShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{1030, 3}, {129, 60}, {15, 1}};
    const auto sequences = random_mla(6, shape, seqs);
    const Elements expected = run_mla(shape, sequences, seqs, {.block_size = 16});
    for (const std::uint32_t block_size : {1U, 7U, 16U, 64U, 1000U}) {
      const Elements out =
          run_mla(shape, sequences, seqs, {.block_size = block_size, .block_order_seed = block_size + 2});
      EXPECT_EQ(out.bytes(), expected.bytes()) << "block_size " << block_size;
    }
  }
}

TEST(MlaExactness, InstructionSetDoesNotShow) {
  for (const MlaShape& shape : exact_shapes()) {
    const std::vector<SeqShape> seqs{{700, 20}, {100, 1}, {5, 5}};
    const auto sequences = random_mla(7, shape, seqs);
    const Elements best = run_mla(shape, sequences, seqs);
    const ForceAvx2 avx2;
    EXPECT_EQ(run_mla(shape, sequences, seqs).bytes(), best.bytes());
  }
}

// A step over pools whose bytes a test may change.
class PoisonedMla {
 public:
  PoisonedMla(const MlaShape& shape, const std::vector<SeqShape>& seqs)
      : step_(shape, random_mla(8, shape, seqs), seqs, {}),
        latents_(step_.latent.k_pool()),
        ropes_(step_.rope.k_pool()) {
    step_.args.latent_pool = address(latents_);
    step_.args.rope_pool = address(ropes_);
  }
  std::vector<float> run() {
    step_.run();
    return step_.out().floats();
  }
  // Of the only sequence.
  void poison_latents(std::uint32_t position) {
    poison(latents_, step_.args.latent_format, step_.args.latent_dim, position);
  }
  void poison_ropes(std::uint32_t position) {
    poison(ropes_, step_.args.rope_format, step_.args.rope_dim, position);
  }

 private:
  void poison(std::vector<std::byte>& pool, KvFormat format, std::uint32_t dim, std::uint32_t position) {
    const std::size_t bytes = quant::kv_side_bytes(format, 16, 1, dim);
    const std::size_t block = step_.latent.tables[position / 16];
    std::fill_n(pool.begin() + static_cast<std::ptrdiff_t>(block * bytes), bytes, std::byte{0xFF});
  }

  MlaStep step_;
  std::vector<std::byte> latents_;
  std::vector<std::byte> ropes_;
};

std::size_t count_finite(const std::vector<float>& values) {
  return static_cast<std::size_t>(std::ranges::count_if(values, [](float v) { return std::isfinite(v); }));
}

template <class Body>
void for_formats(const Body& body) {
  for (const quant::KvFormatInfo& latent : quant::kKvFormats) {
    for (const KvFormat rope : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kTurbo4}) {
      SCOPED_TRACE(testing::Message() << latent.name << "+" << quant::to_string(rope));
      body(MlaShape{.rope_dim = 64, .latent_format = latent.format, .rope_format = rope});
    }
  }
}

TEST(MlaPoison, ARowThatSeesAPoisonedBlockGivesNoNumber) {
  for_formats([](const MlaShape& shape) {
    PoisonedMla latents(shape, {{80, 12}});
    latents.poison_latents(20);
    EXPECT_EQ(count_finite(latents.run()), 0U) << "latents";
    PoisonedMla ropes(shape, {{80, 12}});
    ropes.poison_ropes(20);
    EXPECT_EQ(count_finite(ropes.run()), 0U) << "rope keys";
  });
}

TEST(MlaPoison, ABlockThatNoRowSeesDoesNotShow) {
  for_formats([](MlaShape shape) {
    shape.window = 20;
    const std::vector<SeqShape> seqs{{600, 12}};
    PoisonedMla step(shape, seqs);
    const auto expected = step.run();
    ASSERT_EQ(count_finite(expected), expected.size());
    for (std::uint32_t p = 0; p + 16 <= 600 - 12 + 1 - 20; p += 16) {
      step.poison_latents(p);
      step.poison_ropes(p);
    }
    EXPECT_EQ(step.run(), expected);
  });
}

// The block of the last tokens is seen by the rows that reach it alone.
TEST(MlaPoison, ALaterBlockShowsInTheRowsThatReachItAlone) {
  for_formats([](const MlaShape& shape) {
    PoisonedMla step(shape, {{80, 40}});
    auto expected = step.run();
    step.poison_latents(79);
    step.poison_ropes(79);
    auto got = step.run();
    const std::size_t before = 24 * row_width(shape);  // rows of positions 40 to 63
    EXPECT_EQ(count_finite({got.begin() + static_cast<std::ptrdiff_t>(before), got.end()}), 0U);
    got.resize(before);
    expected.resize(before);
    EXPECT_EQ(got, expected);
  });
}

}  // namespace
}  // namespace metrale::kernels
