// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>

#include "kernels/support/attention_case.h"

namespace metrale::kernels {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

void expect_model(const AttentionShape& shape, const std::vector<SeqShape>& seqs, const AttentionRun& how,
                  std::uint32_t seed) {
  const auto sequences = random_sequences(seed, shape, seqs);
  const auto out = run_attention(shape, sequences, seqs, how).floats();
  const std::size_t width = std::size_t{shape.num_q_heads} * shape.head_dim;
  std::size_t row = 0;
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    for (std::uint32_t i = 0; i < seqs[s].queries; ++i, ++row) {
      const std::uint32_t token = seqs[s].context - seqs[s].queries + i;
      const ModelRow model = model_attention(shape, sequences[s], token);
      for (std::size_t d = 0; d < width; ++d) {
        ASSERT_NEAR(out[row * width + d], model.out[d], model.tolerance[d])
            << "seed " << seed << " sequence " << s << " token " << token << " element " << d << " head_dim "
            << shape.head_dim << " heads " << shape.num_q_heads << "/" << shape.num_kv_heads << " window "
            << shape.window << " block_size " << how.block_size;
      }
    }
  }
}

TEST(PagedAttention, AgreesWithTheModelAtEveryHeadDim) {
  std::uint32_t seed = 100;
  for (const std::uint32_t head_dim : {1U, 5U, 8U, 17U, 64U, 80U, 96U, 128U, 192U, 256U, 512U}) {
    const AttentionShape shape{.head_dim = head_dim};
    expect_model(shape, {{40, 9}, {17, 1}, {16, 16}}, {}, ++seed);
  }
}

TEST(PagedAttention, AgreesWithTheModelAtEveryGroupSize) {
  std::uint32_t seed = 200;
  for (const std::uint32_t group : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 71U}) {
    const AttentionShape shape{.num_q_heads = 2 * group, .num_kv_heads = 2, .head_dim = 32};
    expect_model(shape, {{130, 70}, {33, 1}}, {}, ++seed);
  }
}

TEST(PagedAttention, AgreesWithTheModelForEveryTypeOfElements) {
  std::uint32_t seed = 300;
  for (const quant::ElementType type : kAllTypes) {
    for (const quant::KvFormat k : {quant::KvFormat::kBf16, quant::KvFormat::kFp32}) {
      for (const quant::KvFormat v : {quant::KvFormat::kBf16, quant::KvFormat::kFp32}) {
        const AttentionShape shape{.head_dim = 20, .type = type, .k_format = k, .v_format = v};
        expect_model(shape, {{50, 3}, {18, 18}}, {}, ++seed);
      }
    }
  }
}

TEST(PagedAttention, AgreesWithTheModelForEveryPairOfFormats) {
  std::uint32_t seed = 400;
  for (const quant::KvFormatInfo& k : quant::kKvFormats) {
    for (const quant::KvFormatInfo& v : quant::kKvFormats) {
      SCOPED_TRACE(std::string(k.name) + ":" + std::string(v.name));
      const AttentionShape shape{
          .num_q_heads = 4, .num_kv_heads = 2, .k_format = k.format, .v_format = v.format};
      expect_model(shape, {{70, 3}, {18, 18}, {33, 1}}, {}, ++seed);
    }
  }
}

TEST(PagedAttention, AgreesWithTheModelForEveryFormatAtEveryHeadDim) {
  std::uint32_t seed = 600;
  for (const quant::KvFormatInfo& info : quant::kKvFormats) {
    for (const std::uint32_t head_dim : {64U, 80U, 96U, 128U, 192U, 256U, 512U}) {
      SCOPED_TRACE(info.name);
      const AttentionShape shape{.head_dim = head_dim, .k_format = info.format, .v_format = info.format};
      expect_model(shape, {{40, 9}, {17, 1}, {16, 16}}, {.block_size = 32}, ++seed);
    }
  }
}

// Contexts of three tiles of 64 keys and a part of one, for one token and for several; windows that start
// and end within tiles.
TEST(PagedAttention, AgreesWithTheModelForEveryFormatOverTilesAtEveryHeadDim) {
  std::uint32_t seed = 900;
  for (const quant::KvFormatInfo& info : quant::kKvFormats) {
    for (const std::uint32_t head_dim : {64U, 80U, 96U, 128U, 192U, 256U, 512U}) {
      SCOPED_TRACE(info.name);
      AttentionShape shape{.head_dim = head_dim, .k_format = info.format, .v_format = info.format};
      expect_model(shape, {{231, 1}, {203, 4}}, {.block_size = 32}, ++seed);
      shape.window = 170;
      expect_model(shape, {{251, 1}, {220, 4}}, {}, ++seed);
    }
  }
}

TEST(PagedAttention, AgreesWithTheModelForEveryPairAtEveryHeadDim) {
  std::uint32_t seed = 700;
  for (const std::uint32_t head_dim : {64U, 80U, 96U, 128U, 192U, 256U, 512U}) {
    for (const quant::KvFormatInfo& k : quant::kKvFormats) {
      for (const quant::KvFormatInfo& v : quant::kKvFormats) {
        SCOPED_TRACE(std::string(k.name) + ":" + std::string(v.name));
        const AttentionShape shape{.head_dim = head_dim, .k_format = k.format, .v_format = v.format};
        expect_model(shape, {{21, 3}, {18, 1}}, {}, ++seed);
      }
    }
  }
}

TEST(PagedAttention, AgreesWithTheModelForEveryFormatAcrossSplits) {
  std::uint32_t seed = 800;
  for (const quant::KvFormatInfo& info : quant::kKvFormats) {
    SCOPED_TRACE(info.name);
    const AttentionShape shape{.head_dim = 64, .k_format = info.format, .v_format = info.format};
    expect_model(shape, {{513, 2}, {1030, 1}}, {.threads = 4, .workspace = true}, ++seed);
  }
}

TEST(PagedAttention, AgreesWithTheModelAtBlockBorders) {
  const AttentionShape shape{.head_dim = 16};
  for (std::uint32_t context = 1; context <= 35; ++context) {
    expect_model(shape, {{context, 1}, {context, context}}, {}, 400 + context);
  }
}

TEST(PagedAttention, AgreesWithTheModelAcrossSplits) {
  expect_model({}, {{511, 1}, {512, 1}, {513, 2}, {1024, 3}, {2500, 1}, {600, 100}}, {}, 7);
}

TEST(PagedAttention, AgreesWithTheModelThroughTheWorkspace) {
  expect_model({}, {{1024, 3}, {2500, 1}, {4095, 1}}, {.threads = 4, .workspace = true}, 8);
}

TEST(PagedAttention, AgreesWithTheModelInAWindow) {
  std::uint32_t seed = 500;
  for (const std::uint32_t window : {1U, 2U, 5U, 15U, 16U, 17U, 63U, 64U, 65U, 100U, 200U, 201U, 4000U}) {
    const AttentionShape shape{.head_dim = 24, .window = window};
    expect_model(shape, {{200, 200}, {window, 1}, {window + 1, 2}, {90, 8}, {1, 1}}, {}, ++seed);
  }
}

TEST(PagedAttention, AgreesWithTheModelInAWindowOverSplits) {
  std::uint32_t seed = 600;
  for (const std::uint32_t window : {10U, 511U, 512U, 513U, 1024U, 1500U}) {
    for (const bool workspace : {false, true}) {
      const AttentionShape shape{.head_dim = 16, .window = window};
      expect_model(shape, {{1030, 20}, {521, 19}, {2100, 1}, {1536, 2}}, {.workspace = workspace}, ++seed);
    }
  }
}

TEST(PagedAttention, ReadsNoBlockBeforeTheWindow) {
  const AttentionShape shape{.head_dim = 16, .window = 40};
  const std::vector<SeqShape> seqs{{1200, 3}, {600, 1}};
  const auto sequences = random_sequences(11, shape, seqs);
  const auto expected = run_attention(shape, sequences, seqs).floats();
  AttentionStep step(shape, sequences, seqs, {});
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    const std::uint32_t first_seen = seqs[s].context - seqs[s].queries + 1 - shape.window;
    std::fill_n(step.tables.begin() + step.table_rows[s] * step.args.table_stride, first_seen / 16,
                0x7FFFFFFFU);
  }

  step.run();

  EXPECT_EQ(step.out.floats(), expected);
}

TEST(PagedAttention, AgreesWithTheModelOnRandomBatches) {
  const std::uint32_t first_seed = 1000;
  for (std::uint32_t seed = first_seed; seed < first_seed + 40; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t low, std::uint32_t high) {
      return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
    };
    const std::uint32_t kv_heads = pick(1, 3);
    const AttentionShape shape{.num_q_heads = kv_heads * pick(1, 8),
                               .num_kv_heads = kv_heads,
                               .head_dim = pick(1, 70),
                               .type = kAllTypes[pick(0, 2)],
                               .k_format = pick(0, 1) == 0 ? quant::KvFormat::kBf16 : quant::KvFormat::kFp32,
                               .v_format = pick(0, 1) == 0 ? quant::KvFormat::kBf16 : quant::KvFormat::kFp32,
                               .window = pick(0, 1) == 0 ? 0 : pick(1, 120)};
    std::vector<SeqShape> seqs(pick(1, 5));
    for (SeqShape& s : seqs) {
      s.context = pick(1, pick(0, 4) == 0 ? 700 : 90);
      s.queries = pick(0, 1) == 0 ? 1 : pick(1, std::min(s.context, 40U));
    }
    const AttentionRun how{.block_size = pick(1, 40), .threads = pick(1, 3), .workspace = pick(0, 1) == 0};
    expect_model(shape, seqs, how, seed);
  }
}

TEST(PagedAttention, ServesABatchOf257Rows) {
  const AttentionShape shape{.num_q_heads = 2, .num_kv_heads = 2, .head_dim = 8};
  std::vector<SeqShape> seqs;
  for (std::uint32_t i = 0; i < 257; ++i) seqs.push_back({1 + i % 40, 1});
  expect_model(shape, seqs, {}, 9);
}

TEST(PagedAttention, SkipsSequencesWithoutQueries) {
  expect_model({.head_dim = 16}, {{20, 0}, {20, 2}, {7, 0}, {5, 1}, {9, 0}}, {}, 10);
}

TEST(PagedAttention, WritesNothingForAnEmptyStep) {
  const AttentionShape shape{.head_dim = 16};
  AttentionStep step(shape, random_sequences(1, shape, {{20, 2}}), {{20, 2}}, {});
  const auto before = step.out.bytes();
  step.counts = {};

  step.run();

  EXPECT_EQ(step.out.bytes(), before);
}

TEST(PagedAttention, WritesOnlyTheHeadsOfItsRows) {
  const AttentionShape shape{.num_q_heads = 2, .num_kv_heads = 1, .head_dim = 5};
  AttentionStep step(shape, random_sequences(1, shape, {{20, 2}}), {{20, 2}}, {});
  step.run();
  Elements wide(shape.type, std::vector<float>(2 * 13, -7.0F));
  step.args.out = wide.address();
  step.args.out_stride = 13;

  step.run();

  for (std::size_t i = 0; i < 26; ++i) {
    const float expected = i % 13 < 10 ? step.out.get(i / 13 * 10 + i % 13) : -7.0F;
    EXPECT_EQ(wide.get(i), expected) << i;
  }
}

// A key far above the others takes all the weight: the result is its value, exactly.
TEST(PagedAttention, GivesTheValueOfAnOverwhelmingKey) {
  const AttentionShape shape{.num_q_heads = 1, .num_kv_heads = 1, .head_dim = 8};
  auto sequences = random_sequences(1, shape, {{1100, 1}});
  std::fill_n(sequences[0].q.end() - 8, 8, 100.0F);
  for (std::size_t d = 0; d < 8; ++d) sequences[0].k_given[600 * 8 + d] = 100.0F;

  const auto out = run_attention(shape, sequences, {{1100, 1}}).floats();

  EXPECT_EQ(out, std::vector<float>(&sequences[0].v[600 * 8], &sequences[0].v[601 * 8]));
}

class PagedAttentionRejects : public testing::Test {
 protected:
  AttentionShape shape_{.head_dim = 16};
  AttentionStep step_{shape_, random_sequences(1, shape_, {{20, 2}, {5, 1}}), {{20, 2}, {5, 1}}, {}};

  void expect_rejected(const char* message) {
    EXPECT_THAT([this] { step_.run(); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  }
  void expect_unsupported(const char* message) {
    EXPECT_THAT([this] { step_.run(); }, ThrowsMessage<Unsupported>(HasSubstr(message)));
  }
};

TEST_F(PagedAttentionRejects, MoreTokensThanTheLaunchWasMadeFor) {
  step_.args.max_tokens = 2;
  expect_rejected("3 tokens of 2 sequences in this step, but the launch was made for at most 2 of 2");
}

TEST_F(PagedAttentionRejects, QueryHeadsThatDoNotFormGroups) {
  step_.args.num_q_heads = 3;
  step_.args.num_kv_heads = 2;
  expect_rejected("3 query heads are not a multiple of 2 KV heads");
  step_.args.num_q_heads = 0;
  expect_rejected("0 query heads are not a multiple of 2 KV heads");
}

TEST_F(PagedAttentionRejects, AHeadDimAboveTheLimit) {
  step_.args.head_dim = 513;
  expect_unsupported("head_dim 513");
}

TEST_F(PagedAttentionRejects, AFormatWithoutVectorsOfTheHeadDim) {
  step_.args.v_format = quant::KvFormat::kTurbo3;
  step_.args.head_dim = 24;
  expect_unsupported("turbo3 with head_dim 24");
}

TEST_F(PagedAttentionRejects, AFormatThatDoesNotExist) {
  step_.args.k_format = static_cast<quant::KvFormat>(77);
  expect_unsupported("77");
}

TEST_F(PagedAttentionRejects, AnElementTypeThatDoesNotExist) {
  step_.args.type = static_cast<quant::ElementType>(9);
  expect_unsupported("element type 9");
}

TEST_F(PagedAttentionRejects, AContextBeyondTheBlockTable) {
  step_.context_lens[1] = 33;
  expect_rejected("sequence 1 has a context of 33 tokens");
}

TEST_F(PagedAttentionRejects, AContextShorterThanItsQueries) {
  step_.context_lens[0] = 1;
  expect_rejected("sequence 0 has a context of 1 tokens, 2 of them queries");
}

TEST_F(PagedAttentionRejects, QueryStartsThatDoNotCoverTheStep) {
  step_.query_starts[2] = 2;
  expect_rejected("own 2 query tokens, the step has 3");
}

TEST_F(PagedAttentionRejects, QueryStartsThatGoBack) {
  step_.query_starts[1] = 3;
  step_.query_starts[2] = 2;
  expect_rejected("sequence 1 owns query tokens [3, 2)");
}

}  // namespace
}  // namespace metrale::kernels
