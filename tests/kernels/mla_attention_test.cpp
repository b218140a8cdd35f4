// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/kv_write.h>
#include <metrale/kernels/rotation.h>
#include <metrale/quant/hadamard.h>

#include "kernels/support/mla_case.h"

namespace metrale::kernels {
namespace {

using quant::KvFormat;
using testing::HasSubstr;
using testing::ThrowsMessage;

void expect_model(const MlaShape& shape, const std::vector<SeqShape>& seqs, const AttentionRun& how,
                  std::uint32_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << " heads " << shape.num_heads << " dims "
                                  << shape.latent_dim << "+" << shape.rope_dim << " formats "
                                  << quant::to_string(shape.latent_format) << "+"
                                  << quant::to_string(shape.rope_format) << " window " << shape.window
                                  << " block_size " << how.block_size);
  const auto sequences = random_mla(seed, shape, seqs);
  expect_mla_model(shape, sequences, seqs, run_mla(shape, sequences, seqs, how));
}

TEST(MlaAttention, AgreesWithTheModelForEveryFormatOfLatentsAndSomeOfRopeKeys) {
  std::uint32_t seed = 100;
  for (const quant::KvFormatInfo& latent : quant::kKvFormats) {
    for (const KvFormat rope : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kTurbo4}) {
      const MlaShape shape{
          .latent_dim = 128, .rope_dim = 64, .latent_format = latent.format, .rope_format = rope};
      expect_model(shape, {{70, 1}, {18, 18}, {33, 3}}, {}, ++seed);
    }
  }
}

TEST(MlaAttention, AgreesWithTheModelAtDeepSeeksDimensions) {
  std::uint32_t seed = 200;
  for (const quant::KvFormatInfo& latent : quant::kKvFormats) {
    for (const KvFormat rope : {KvFormat::kBf16, KvFormat::kFp8}) {
      SCOPED_TRACE(latent.name);
      const MlaShape shape{.num_heads = 16,
                           .latent_dim = 512,
                           .rope_dim = 64,
                           .latent_format = latent.format,
                           .rope_format = rope};
      expect_model(shape, {{90, 1}, {20, 5}}, {.block_size = 64}, ++seed);
    }
  }
}

TEST(MlaAttention, AgreesWithTheModelAtEveryDimension) {
  std::uint32_t seed = 300;
  for (const auto& [latent, rope] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {64, 16}, {80, 32}, {112, 48}, {256, 96}, {384, 128}, {512, 112}}) {
    expect_model({.latent_dim = latent, .rope_dim = rope}, {{40, 9}, {17, 1}}, {}, ++seed);
  }
}

TEST(MlaAttention, AgreesWithTheModelForEveryTypeOfElements) {
  std::uint32_t seed = 400;
  for (const quant::ElementType type : kAllTypes) expect_model({.type = type}, {{50, 3}}, {}, ++seed);
}

// From one row a tile to heads that no tile holds all of.
TEST(MlaAttention, AgreesWithTheModelForEveryNumberOfHeads) {
  std::uint32_t seed = 500;
  for (const std::uint32_t heads : {1U, 2U, 7U, 16U, 63U, 64U, 65U, 128U, 130U}) {
    expect_model({.num_heads = heads}, {{80, 3}, {33, 1}}, {}, ++seed);
  }
}

TEST(MlaAttention, AgreesWithTheModelAtBlockBorders) {
  for (std::uint32_t context = 1; context <= 35; ++context) {
    expect_model({}, {{context, 1}, {context, context}}, {}, 600 + context);
  }
}

TEST(MlaAttention, AgreesWithTheModelAcrossSplits) {
  expect_model({.num_heads = 3}, {{511, 1}, {512, 1}, {513, 2}, {1024, 3}, {2500, 1}, {600, 100}}, {}, 7);
}

TEST(MlaAttention, AgreesWithTheModelThroughTheWorkspace) {
  expect_model({}, {{1024, 3}, {2500, 1}}, {.threads = 4, .workspace = true}, 8);
  expect_model({.num_heads = 100}, {{1100, 1}}, {.threads = 3, .workspace = true}, 9);
}

TEST(MlaAttention, AgreesWithTheModelInAWindow) {
  std::uint32_t seed = 700;
  for (const std::uint32_t window : {1U, 5U, 16U, 17U, 64U, 100U, 511U, 513U, 4000U}) {
    for (const bool workspace : {false, true}) {
      expect_model({.num_heads = 2, .window = window}, {{200, 60}, {window, 1}, {1030, 20}},
                   {.workspace = workspace}, ++seed);
    }
  }
}

TEST(MlaAttention, AgreesWithTheModelOnRandomBatches) {
  const std::uint32_t first_seed = 1000;
  for (std::uint32_t seed = first_seed; seed < first_seed + 30; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t low, std::uint32_t high) {
      return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
    };
    const MlaShape shape{.num_heads = pick(1, 20),
                         .latent_dim = 128,
                         .rope_dim = 64,
                         .type = kAllTypes[pick(0, 2)],
                         .latent_format = quant::kKvFormats[pick(0, 10)].format,
                         .rope_format = quant::kKvFormats[pick(0, 10)].format,
                         .window = pick(0, 1) == 0 ? 0 : pick(1, 120)};
    std::vector<SeqShape> seqs(pick(1, 4));
    for (SeqShape& s : seqs) {
      s.context = pick(1, pick(0, 4) == 0 ? 600 : 70);
      s.queries = pick(0, 1) == 0 ? 1 : pick(1, std::min(s.context, 20U));
    }
    expect_model(shape, seqs,
                 {.block_size = 8 * pick(1, 5),
                  .threads = pick(1, 3),
                  .workspace = pick(0, 1) == 0,
                  .block_order_seed = seed},
                 seed);
  }
}

// Powers of two change no rounding: each side's scale reaches its own side.
TEST(MlaAttention, EachSideHasItsOwnScale) {
  const MlaShape shape{.rope_dim = 64, .latent_format = KvFormat::kFp8, .rope_format = KvFormat::kNvfp4};
  const std::vector<SeqShape> seqs{{40, 3}};
  auto sequences = random_mla(20, shape, seqs);
  const auto expected = run_mla(shape, sequences, seqs).floats();
  for (float& q : sequences.latent[0].q) q *= 0.25F;
  for (float& q : sequences.rope[0].q) q *= 0.5F;
  MlaStep step(shape, sequences, seqs, {});
  const float latent_scale = 4 * head_scale(0);
  const float rope_scale = 2 * head_scale(0);
  step.args.latent_scales = address(&latent_scale);
  step.args.rope_scales = address(&rope_scale);

  step.run();

  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(step.out().get(i), 4 * expected[i]) << i;
}

TEST(MlaAttention, WithoutScalesTheyAreOne) {
  const MlaShape shape{.latent_format = KvFormat::kFp8, .rope_format = KvFormat::kFp8};
  const std::vector<SeqShape> seqs{{40, 3}};
  const auto sequences = random_mla(21, shape, seqs);
  MlaStep one(shape, sequences, seqs, {});
  MlaStep none(shape, sequences, seqs, {});
  const float scale = 1;
  one.args.latent_scales = one.args.rope_scales = address(&scale);
  none.args.latent_scales = none.args.rope_scales = 0;

  one.run();
  none.run();

  EXPECT_EQ(none.out().bytes(), one.out().bytes());
}

// Writes what a sequence stores into pools of its own, by two launches without values, then attends.
class WrittenMla {
 public:
  WrittenMla(const MlaShape& shape, const MlaSequences& sequences, const std::vector<SeqShape>& seqs)
      : step(shape, sequences, seqs, {}),
        context_(seqs[0].context),
        latents_(step.latent.k_pool().size(), std::byte{0xFF}),
        ropes_(step.rope.k_pool().size(), std::byte{0xFF}) {
    for (std::uint32_t t = 0; t < context_; ++t) slots_.push_back(step.latent.tables[t / 16] * 16 + t % 16);
    step.args.latent_pool = address(latents_);
    step.args.rope_pool = address(ropes_);
  }

  // `diagonal` of the latents: [latent_dim], or none.
  void write(const MlaSequences& sequences, const std::vector<float>& diagonal) {
    KvSideParams params{.scales = step.args.latent_scales};
    if (!diagonal.empty()) params.diagonal = address(diagonal);
    write_side(sequences.latent[0].k_given, step.args.latent_format, step.args.latent_dim, latents_, params);
    write_side(sequences.rope[0].k_given, step.args.rope_format, step.args.rope_dim, ropes_,
               {.scales = step.args.rope_scales});
  }

  MlaStep step;

 private:
  void write_side(const std::vector<float>& vectors, KvFormat format, std::uint32_t dim,
                  std::vector<std::byte>& pool, const KvSideParams& params) {
    KvWriteArgs args{};
    args.rows = address(&context_);
    args.k = address(vectors);
    args.slots = address(slots_);
    args.k_pool = address(pool);
    args.max_rows = context_;
    args.stride = dim;
    args.num_kv_heads = 1;
    args.head_dim = dim;
    args.block_size = 16;
    args.num_blocks = step.args.table_stride;
    args.type = quant::ElementType::kF32;
    args.k_format = format;
    args.k_params = params;
    run_kernel(test_pool(), kKvWrite, args);
  }

  std::uint32_t context_;
  std::vector<std::byte> latents_;
  std::vector<std::byte> ropes_;
  std::vector<std::int64_t> slots_;
};

TEST(MlaAttention, AttendsOverWhatKvWriteStoresWithoutValues) {
  for (const quant::KvFormatInfo& info : quant::kKvFormats) {
    SCOPED_TRACE(info.name);
    const MlaShape shape{
        .latent_dim = 128, .rope_dim = 64, .latent_format = info.format, .rope_format = info.format};
    const std::vector<SeqShape> seqs{{50, 4}};
    const auto sequences = random_mla(22, shape, seqs);
    WrittenMla written(shape, sequences, seqs);
    written.write(sequences, {});

    written.step.run();

    EXPECT_EQ(written.step.out().bytes(), run_mla(shape, sequences, seqs).bytes());
  }
}

// The whole way of a rotated latent with a diagonal D: H D x is stored, H D^-1 q is asked, and D^-1 H turns
// the result back. What is left is the format's own error.
TEST(MlaAttention, ARotatedLatentComesBackFromItsBasis) {
  const MlaShape shape{
      .latent_dim = 512, .rope_dim = 64, .latent_format = KvFormat::kTurbo8, .rope_format = KvFormat::kFp32};
  const MlaShape plain{
      .latent_dim = 512, .rope_dim = 64, .latent_format = KvFormat::kFp32, .rope_format = KvFormat::kFp32};
  const std::vector<SeqShape> seqs{{50, 50}};
  const auto sequences = random_mla(23, plain, seqs);
  std::vector<float> diagonal(512);
  std::vector<float> inverse(512);
  for (std::size_t i = 0; i < 512; ++i) {
    diagonal[i] = (i % 3 == 0 ? -1.0F : 1.0F) * (i % 5 == 0 ? 2.0F : 1.0F);
    inverse[i] = 1.0F / diagonal[i];
  }
  WrittenMla written(shape, sequences, seqs);
  written.write(sequences, diagonal);
  const std::uint32_t rows = 50;
  RotateHeadsArgs rotate{.rows = address(&rows),
                         .data = written.step.args.q_latent,
                         .diagonal = address(inverse),
                         .max_rows = rows,
                         .stride = written.step.args.q_latent_stride,
                         .num_heads = shape.num_heads,
                         .num_kv_heads = 1,
                         .head_dim = 512,
                         .type = shape.type,
                         .inverse = 0,
                         .reserved = 0};

  run_kernel(test_pool(), kRotateHeads, rotate);
  written.step.run();
  rotate.data = written.step.args.out;
  rotate.inverse = 1;
  run_kernel(test_pool(), kRotateHeads, rotate);

  const auto expected = run_mla(plain, sequences, seqs).floats();
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{written.step.out().get(i)} - double{expected[i]}, 2);
    size += std::pow(double{expected[i]}, 2);
  }
  EXPECT_LT(std::sqrt(error / size), 0.05);  // E4M3 has four bits of mantissa: 0.03 for each element
}

TEST(MlaAttention, ReadsNoBlockBeforeTheWindow) {
  const MlaShape shape{.window = 40};
  const std::vector<SeqShape> seqs{{1200, 3}, {600, 1}};
  const auto sequences = random_mla(24, shape, seqs);
  const auto expected = run_mla(shape, sequences, seqs).floats();
  MlaStep step(shape, sequences, seqs, {});
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    const std::uint32_t first_seen = seqs[s].context - seqs[s].queries + 1 - shape.window;
    std::fill_n(
        step.latent.tables.begin() + std::ptrdiff_t{step.latent.table_rows[s]} * step.args.table_stride,
        first_seen / 16, 0x7FFFFFFFU);
  }

  step.run();

  EXPECT_EQ(step.out().floats(), expected);
}

TEST(MlaAttention, WritesOnlyTheHeadsOfItsRows) {
  const MlaShape shape{.num_heads = 2};
  const std::vector<SeqShape> seqs{{20, 2}};
  MlaStep step(shape, random_mla(25, shape, seqs), seqs, {});
  step.run();
  constexpr std::uint32_t kStride = 2 * 64 + 3;
  Elements wide(shape.type, std::vector<float>(2 * std::size_t{kStride}, -7.0F));
  step.args.out = wide.address();
  step.args.out_stride = kStride;

  step.run();

  for (std::size_t i = 0; i < wide.size(); ++i) {
    const float expected = i % kStride < 128 ? step.out().get(i / kStride * 128 + i % kStride) : -7.0F;
    EXPECT_EQ(wide.get(i), expected) << i;
  }
}

TEST(MlaAttention, WritesNothingForAnEmptyStep) {
  const MlaShape shape;
  MlaStep step(shape, random_mla(26, shape, {{20, 2}}), {{20, 2}}, {});
  const auto before = step.out().bytes();
  step.latent.counts = {};

  step.run();

  EXPECT_EQ(step.out().bytes(), before);
}

class MlaAttentionRejects : public testing::Test {
 protected:
  MlaShape shape;
  MlaStep step{shape, random_mla(27, shape, {{20, 2}, {5, 1}}), {{20, 2}, {5, 1}}, {}};

  void expect_rejected(const char* message) {
    EXPECT_THAT([this] { step.run(); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  }
  void expect_unsupported(const char* message) {
    EXPECT_THAT([this] { step.run(); }, ThrowsMessage<Unsupported>(HasSubstr(message)));
  }
};

TEST_F(MlaAttentionRejects, LatentDimsWithoutKernels) {
  for (const std::uint32_t dim : {0U, 48U, 72U, 528U}) {
    step.args.latent_dim = dim;
    expect_unsupported(("latent_dim " + std::to_string(dim) + ": multiples of 16 from 64 to 512").c_str());
  }
}

TEST_F(MlaAttentionRejects, RopeDimsWithoutKernels) {
  for (const std::uint32_t dim : {0U, 8U, 24U, 144U}) {
    step.args.rope_dim = dim;
    expect_unsupported(("rope_dim " + std::to_string(dim) + ": multiples of 16 from 16 to 128").c_str());
  }
}

TEST_F(MlaAttentionRejects, AFormatWithoutVectorsOfTheDimension) {
  step.args.rope_format = KvFormat::kTurbo4;
  expect_unsupported("rope_format turbo4 with rope_dim 16");
  step.args.rope_format = KvFormat::kBf16;
  step.args.latent_format = KvFormat::kTurbo2;
  step.args.latent_dim = 112;
  expect_unsupported("latent_format turbo2 with latent_dim 112");
}

TEST_F(MlaAttentionRejects, FormatsThatDoNotExist) {
  step.args.rope_format = std::bit_cast<KvFormat>(77U);
  expect_unsupported("rope_format 77");
  step.args.latent_format = std::bit_cast<KvFormat>(78U);
  expect_unsupported("latent_format 78");
}

TEST_F(MlaAttentionRejects, AnElementTypeThatDoesNotExist) {
  step.args.type = std::bit_cast<quant::ElementType>(9U);
  expect_unsupported("element type 9");
}

TEST_F(MlaAttentionRejects, NoHeads) {
  step.args.num_heads = 0;
  expect_rejected("mla_attention: num_heads is 0");
}

TEST_F(MlaAttentionRejects, BlocksOfNoTokens) {
  step.args.block_size = 0;
  expect_rejected("mla_attention: block_size is 0");
}

TEST_F(MlaAttentionRejects, MoreTokensThanTheLaunchWasMadeFor) {
  step.args.max_tokens = 2;
  expect_rejected("mla_attention: 3 tokens of 2 sequences in this step, but the launch was made for at most");
}

TEST_F(MlaAttentionRejects, AContextBeyondTheBlockTable) {
  step.latent.context_lens[1] = 33;
  expect_rejected("mla_attention: sequence 1 has a context of 33 tokens");
}

TEST_F(MlaAttentionRejects, QueryStartsThatDoNotCoverTheStep) {
  step.latent.query_starts[2] = 2;
  expect_rejected("mla_attention: the sequences own 2 query tokens, the step has 3");
}

}  // namespace
}  // namespace metrale::kernels
