// SPDX-License-Identifier: Apache-2.0
// Paged attention on the device against the double-precision model, and what it reads, writes and refuses.
#include <numeric>

#include "cuda/support/device_attention.h"
#include "cuda/support/parity.h"

namespace metrale::kernels {
namespace {

using quant::ElementType;
using quant::KvFormat;

constexpr AttentionShape kTensorShape{.num_q_heads = 8, .num_kv_heads = 2, .type = ElementType::kBf16};

AttentionShape tensor_shape(std::uint32_t head_dim, std::uint32_t window = 0) {
  AttentionShape shape = kTensorShape;
  shape.head_dim = head_dim;
  shape.window = window;
  return shape;
}

class CudaAttention : public testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static AttentionRun how(std::uint32_t block_size = 16) {
    return {.block_size = block_size, .workspace = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaAttention, testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "BySplits" : "InOneGo"); });

TEST_P(CudaAttention, AgreesWithTheModelAtEveryHeadDim) {
  std::uint32_t seed = 100;
  for (const std::uint32_t head_dim :
       {1U, 5U, 8U, 16U, 17U, 24U, 64U, 72U, 80U, 96U, 128U, 136U, 192U, 256U, 264U, 512U}) {
    expect_device_model(tensor_shape(head_dim), {{40, 9}, {17, 1}, {16, 16}}, how(), ++seed);
    expect_device_model({.head_dim = head_dim}, {{40, 9}, {17, 1}, {16, 16}}, how(), ++seed);
  }
}

TEST_P(CudaAttention, AgreesWithTheModelAtEveryGroupSize) {
  std::uint32_t seed = 200;
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    for (const std::uint32_t group : {1U, 2U, 3U, 4U, 5U, 7U, 8U, 16U, 17U, 71U}) {
      const AttentionShape shape{.num_q_heads = 2 * group, .num_kv_heads = 2, .head_dim = 32, .type = type};
      expect_device_model(shape, {{130, 70}, {33, 1}}, how(), ++seed);
    }
  }
}

TEST_P(CudaAttention, AgreesWithTheModelForEveryTypeAndPairOfFormats) {
  std::uint32_t seed = 300;
  for (const ElementType type : kAllTypes) {
    for (const KvFormat k : {KvFormat::kBf16, KvFormat::kFp32}) {
      for (const KvFormat v : {KvFormat::kBf16, KvFormat::kFp32}) {
        const AttentionShape shape{.head_dim = 24, .type = type, .k_format = k, .v_format = v};
        expect_device_model(shape, {{50, 3}, {18, 18}}, how(), ++seed);
      }
    }
  }
}

TEST_P(CudaAttention, AgreesWithTheModelAtBlockBorders) {
  for (std::uint32_t context = 1; context <= 35; ++context) {
    expect_device_model(tensor_shape(16), {{context, 1}, {context, context}}, how(), 400 + context);
    expect_device_model({.head_dim = 16}, {{context, 1}, {context, context}}, how(), 450 + context);
  }
}

TEST_P(CudaAttention, AgreesWithTheModelAcrossSplits) {
  const std::vector<SeqShape> seqs{{511, 1}, {512, 1}, {513, 2}, {1024, 3}, {2500, 1}, {600, 100}};
  std::uint32_t seed = 500;
  for (const std::uint32_t head_dim : {64U, 128U, 256U}) {
    expect_device_model({.head_dim = head_dim, .type = ElementType::kBf16}, seqs, how(), ++seed);
  }
  expect_device_model({}, seqs, how(), ++seed);
}

TEST_P(CudaAttention, AgreesWithTheModelInAWindow) {
  std::uint32_t seed = 600;
  for (const std::uint32_t window : {1U, 2U, 15U, 16U, 17U, 33U, 63U, 64U, 65U, 100U, 200U, 201U, 4000U}) {
    const std::vector<SeqShape> seqs{{200, 200}, {window, 1}, {window + 1, 2}, {90, 8}, {1, 1}};
    expect_device_model({.head_dim = 24, .type = ElementType::kBf16, .window = window}, seqs, how(), ++seed);
    expect_device_model({.head_dim = 24, .window = window}, seqs, how(), ++seed);
  }
}

TEST_P(CudaAttention, AgreesWithTheModelInAWindowOverSplits) {
  std::uint32_t seed = 700;
  for (const std::uint32_t window : {10U, 511U, 512U, 513U, 1500U}) {
    const std::vector<SeqShape> seqs{{1030, 20}, {521, 19}, {2100, 1}, {1536, 2}};
    expect_device_model({.head_dim = 16, .type = ElementType::kBf16, .window = window}, seqs, how(), ++seed);
    expect_device_model({.head_dim = 16, .window = window}, seqs, how(), ++seed);
  }
}

TEST_P(CudaAttention, AgreesWithTheModelOnRandomBatches) {
  const std::uint32_t first_seed = 1000;
  for (std::uint32_t seed = first_seed; seed < first_seed + 40; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t low, std::uint32_t high) {
      return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
    };
    const std::uint32_t kv_heads = pick(1, 3);
    const bool tensor = pick(0, 1) == 0;
    const auto format = [&] { return tensor || pick(0, 1) == 0 ? KvFormat::kBf16 : KvFormat::kFp32; };
    const AttentionShape shape{.num_q_heads = kv_heads * pick(1, 8),
                               .num_kv_heads = kv_heads,
                               .head_dim = tensor ? 8 * pick(1, 18) : pick(1, 70),
                               .type = tensor ? ElementType::kBf16 : kAllTypes[pick(0, 2)],
                               .k_format = format(),
                               .v_format = format(),
                               .window = pick(0, 1) == 0 ? 0 : pick(1, 120)};
    std::vector<SeqShape> seqs(pick(1, 5));
    for (SeqShape& s : seqs) {
      s.context = pick(1, pick(0, 4) == 0 ? 700 : 90);
      s.queries = pick(0, 1) == 0 ? 1 : pick(1, std::min(s.context, 40U));
    }
    expect_device_model(shape, seqs, how(pick(1, 40)), seed);
  }
}

TEST_P(CudaAttention, ServesMoreSequencesThanABlockHasThreads) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    const AttentionShape shape{.num_q_heads = 2, .num_kv_heads = 2, .head_dim = 8, .type = type};
    std::vector<SeqShape> seqs;
    for (std::uint32_t i = 0; i < 600; ++i) seqs.push_back({1 + i % 40, 1});
    expect_device_model(shape, seqs, how(), 9);
  }
}

TEST_P(CudaAttention, SkipsSequencesWithoutQueries) {
  const std::vector<SeqShape> seqs{{20, 0}, {20, 2}, {7, 0}, {5, 1}, {9, 0}};
  expect_device_model(tensor_shape(16), seqs, how(), 10);
  expect_device_model({.head_dim = 16}, seqs, how(), 10);
}

TEST_P(CudaAttention, WritesNothingForAnEmptyStep) {
  for (const AttentionShape& shape : {tensor_shape(16), AttentionShape{.head_dim = 16}}) {
    const AttentionStep step(shape, random_sequences(1, shape, {{20, 2}}), {{20, 2}}, how());
    DeviceStep device(cuda_backend(), step);
    const auto before = device.out();
    device.set_lengths({}, step.query_starts, step.context_lens);

    EXPECT_EQ(device.run().bytes(), before.bytes());
  }
}

TEST_P(CudaAttention, WritesOnlyTheHeadsOfItsRows) {
  for (const AttentionShape& shape :
       {AttentionShape{.num_q_heads = 2, .head_dim = 8, .type = ElementType::kBf16},
        AttentionShape{.num_q_heads = 2, .head_dim = 8}}) {
    const AttentionStep step(shape, random_sequences(1, shape, {{20, 2}}), {{20, 2}}, how());
    DeviceStep device(cuda_backend(), step);
    const Elements narrow = device.run();
    device.args.out = device.memory.put(Elements(shape.type, std::vector<float>(2 * 19, -7.0F)));
    device.args.out_stride = 19;

    device.memory.run(kPagedAttention, device.args);

    const Elements wide = device.memory.get(shape.type, device.args.out, 2 * 19);
    for (std::size_t i = 0; i < 38; ++i) {
      EXPECT_EQ(wide.get(i), i % 19 < 16 ? narrow.get(i / 19 * 16 + i % 19) : -7.0F) << i;
    }
  }
}

// The queries of a fused projection: rows of another stride that start anywhere.
TEST_P(CudaAttention, ReadsQueriesOfAnyStride) {
  const AttentionShape shape{.num_q_heads = 3, .head_dim = 72, .type = ElementType::kBf16};
  const AttentionStep step(shape, random_sequences(1, shape, {{50, 7}}), {{50, 7}}, how());
  DeviceStep device(cuda_backend(), step);
  const Elements expected = device.run();
  const std::uint32_t width = 3 * 72;
  for (const std::uint32_t stride : {width + 1, width + 2, width + 16}) {
    Elements wide(shape.type, std::vector<float>(8 * stride, std::numeric_limits<float>::quiet_NaN()));
    for (std::size_t i = 0; i < 7 * width; ++i) {
      wide.set(1 + i / width * stride + i % width, step.queries().get(i));
    }
    device.args.q = device.memory.put(wide) + 2;
    device.args.q_stride = stride;

    EXPECT_EQ(device.run().bytes(), expected.bytes()) << "stride " << stride;
  }
}

TEST_P(CudaAttention, ReadsNoBlockBeforeTheWindow) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    const AttentionShape shape{.head_dim = 16, .type = type, .window = 40};
    const std::vector<SeqShape> seqs{{1200, 3}, {600, 1}, {90, 60}};
    const auto sequences = random_sequences(11, shape, seqs);
    const Elements expected = device_attention(shape, sequences, seqs, how());
    AttentionStep step(shape, sequences, seqs, how());
    for (std::size_t s = 0; s < seqs.size(); ++s) {
      const std::uint32_t first = seqs[s].context - seqs[s].queries + 1;
      const std::uint32_t first_seen = first > shape.window ? first - shape.window : 0;
      std::fill_n(step.tables.begin() + step.table_rows[s] * step.args.table_stride, first_seen / 16,
                  0xFFFFFFFFU);
    }

    EXPECT_EQ(DeviceStep(cuda_backend(), step).run().bytes(), expected.bytes());
  }
}

// A key far above the others takes all the weight: the result is its value, exactly.
TEST_P(CudaAttention, GivesTheValueOfAnOverwhelmingKey) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    const AttentionShape shape{.num_q_heads = 1, .head_dim = 8, .type = type};
    auto sequences = random_sequences(1, shape, {{1100, 1}});
    std::fill_n(sequences[0].q.end() - 8, 8, 100.0F);
    for (std::size_t d = 0; d < 8; ++d) sequences[0].k_given[600 * 8 + d] = 100.0F;

    const auto out = device_attention(shape, sequences, {{1100, 1}}, how()).floats();

    EXPECT_EQ(out, std::vector<float>(&sequences[0].v[600 * 8], &sequences[0].v[601 * 8]));
  }
}

// Whole parts and splits of scores that overflow to minus infinity weigh nothing.
TEST_P(CudaAttention, GivesNoWeightToScoresOfMinusInfinity) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    const AttentionShape shape{.num_q_heads = 1, .head_dim = 8, .type = type};
    auto sequences = random_sequences(13, shape, {{1300, 1}});
    std::fill_n(sequences[0].q.end() - 8, 8, 1e20F);
    std::fill_n(sequences[0].k_given.begin(), 1280 * 8, -1e20F);
    std::fill_n(&sequences[0].k_given[1290 * 8], 8, 100.0F);

    const auto out = device_attention(shape, sequences, {{1300, 1}}, how()).floats();

    EXPECT_EQ(out, std::vector<float>(&sequences[0].v[1290 * 8], &sequences[0].v[1291 * 8]));
  }
}

// Scores of hundreds: weights neither overflow nor vanish.
TEST_P(CudaAttention, SurvivesLargeScores) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    const AttentionShape shape{.num_q_heads = 2, .head_dim = 64, .type = type};
    auto sequences = random_sequences(12, shape, {{700, 3}});
    for (float& x : sequences[0].q) x *= 64.0F;

    const auto out = device_attention(shape, sequences, {{700, 3}}, how()).floats();

    for (const float x : out) EXPECT_TRUE(std::isfinite(x));
  }
}

// Blocks far apart in a pool of more than 2^31 bytes.
TEST_P(CudaAttention, ReachesBlocksBeyond31Bits) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    const AttentionShape shape{.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 128, .type = type};
    const std::vector<SeqShape> seqs{{100, 1}, {60, 20}};
    AttentionStep step(shape, random_sequences(13, shape, seqs), seqs, how());
    const Elements expected = DeviceStep(cuda_backend(), step).run();
    const std::uint64_t side = quant::kv_side_bytes(KvFormat::kBf16, 16, 2, 128);
    const std::uint64_t blocks = step.k_pool().size() / side;
    const std::uint64_t apart = kBeyond31Bits / side / (blocks - 1) + 1;
    BigBuffer k_pool(cuda_backend(), (apart * (blocks - 1) + 1) * side);
    BigBuffer v_pool(cuda_backend(), (apart * (blocks - 1) + 1) * side);
    for (std::uint64_t block = 0; block < blocks; ++block) {
      const auto bytes = [&](const std::vector<std::byte>& pool) {
        const auto from = pool.begin() + static_cast<std::ptrdiff_t>(block * side);
        return std::vector<std::byte>(from, from + static_cast<std::ptrdiff_t>(side));
      };
      k_pool.put(block * apart * side, bytes(step.k_pool()));
      v_pool.put(block * apart * side, bytes(step.v_pool()));
    }
    for (std::uint32_t& id : step.tables) {
      if (id != 0xFFFFFFFFU) id *= static_cast<std::uint32_t>(apart);
    }
    DeviceStep device(cuda_backend(), step);
    device.args.k_pool = k_pool.address();
    device.args.v_pool = v_pool.address();

    EXPECT_EQ(device.run().bytes(), expected.bytes());
  }
}

class CudaAttentionRejects : public testing::Test {
 protected:
  AttentionShape shape_ = tensor_shape(16);
  AttentionStep step_{shape_, random_sequences(1, shape_, {{20, 2}, {5, 1}}), {{20, 2}, {5, 1}}, {}};

  void expect_fault(const std::string& text) {
    for (const ElementType type : {ElementType::kBf16, ElementType::kF16}) {
      OwnBackend own;
      AttentionArgs args = put_step(own.run, step_);
      args.type = type;
      own.expect_fault(kPagedAttention, args, text);
    }
  }
  template <class Error>
  void expect_refused(const char* text) {
    DeviceStep device(cuda_backend(), step_);
    EXPECT_THAT([&] { device.memory.run(kPagedAttention, device.args); },
                testing::ThrowsMessage<Error>(testing::HasSubstr(text)));
  }
};

TEST_F(CudaAttentionRejects, MoreTokensThanTheLaunchWasMadeFor) {
  step_.args.max_tokens = 2;
  expect_fault("3 rows");
}

TEST_F(CudaAttentionRejects, AContextBeyondTheBlockTable) {
  step_.context_lens[1] = 33;
  expect_fault("sequence 1");
}

TEST_F(CudaAttentionRejects, AContextShorterThanItsQueries) {
  step_.context_lens[0] = 1;
  expect_fault("sequence 0");
}

TEST_F(CudaAttentionRejects, QueryStartsThatDoNotCoverTheStep) {
  step_.query_starts[2] = 2;
  expect_fault("sequence 1");
}

TEST_F(CudaAttentionRejects, QueryStartsThatGoBack) {
  step_.query_starts[1] = 3;
  step_.query_starts[2] = 2;
  expect_fault("sequence 1");
}

TEST_F(CudaAttentionRejects, QueryHeadsThatDoNotFormGroups) {
  step_.args.num_q_heads = 3;
  expect_refused<InvalidArgument>("3 query heads are not a multiple of 2 KV heads");
}

TEST_F(CudaAttentionRejects, AHeadDimAboveTheLimit) {
  step_.args.head_dim = 513;
  expect_refused<Unsupported>("head_dim 513");
}

TEST_F(CudaAttentionRejects, AFormatWithoutKernels) {
  step_.args.v_format = KvFormat::kNvfp4;
  expect_refused<Unsupported>("nvfp4");
}

}  // namespace
}  // namespace metrale::kernels
