// SPDX-License-Identifier: Apache-2.0
// A request's logits are bit-equal whatever it is batched with and however its prompt is cut.
#include <random>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gtest/gtest.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

std::vector<Tokens> ragged_sequences(std::size_t count, std::size_t longest, std::uint32_t vocab,
                                     unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Tokens> sequences(count);
  for (std::size_t s = 0; s < count; ++s) {
    sequences[s].resize(s == 0 ? longest : 1 + random() % longest);
    for (std::int32_t& token : sequences[s]) token = static_cast<std::int32_t>(random() % vocab);
  }
  return sequences;
}

struct ExactnessCase {
  const char* model;
  quant::ElementType compute;
  std::uint32_t block_size;
  quant::KvFormat kv;
  friend void PrintTo(const ExactnessCase& c, std::ostream* os) {
    *os << c.model << "_" << quant::to_string(c.compute) << "_" << c.block_size << "_"
        << quant::to_string(c.kv);
  }
};

class Exactness : public testing::TestWithParam<ExactnessCase> {
 protected:
  Exactness() {
    TinyModel model = tiny_model(GetParam().model);
    model.config["max_position_embeddings"] = 2048;
    write_tiny_model(model, dir.path());
    options.max_seq_len = 1100;
    options.max_batch_size = 16;
    options.max_batch_tokens = 256;
    options.block_size = GetParam().block_size;
    options.kv_dtype = {GetParam().kv, GetParam().kv};
    options.compute = GetParam().compute;
  }

  TempDir dir;
  engine::EngineOptions options;
};

TEST_P(Exactness, SixteenRaggedSequencesTogetherEqualEachAlone) {
  EngineHarness harness(dir.path(), options);
  const auto sequences = ragged_sequences(16, 90, harness.engine().config().vocab_size, 7);

  const auto together = harness.logits(sequences, 33);

  for (std::size_t s = 0; s < sequences.size(); ++s) {
    EXPECT_TRUE(same_bits(together[s], harness.logits_alone(sequences[s], 90))) << "sequence " << s;
  }
}

TEST_P(Exactness, ChunksOfAnySizeGiveTheSameLogits) {
  EngineHarness harness(dir.path(), options);
  // Two splits of 512 tokens and a part.
  const Tokens sequence = ragged_sequences(1, 1090, harness.engine().config().vocab_size, 8).front();

  const auto whole = harness.logits_alone(sequence, 256);

  for (const std::size_t chunk : {1, 7, 64}) {
    EXPECT_TRUE(same_bits(harness.logits_alone(sequence, chunk), whole)) << "chunks of " << chunk;
  }
}

TEST_P(Exactness, ThreadsGraphsAndBlockOrderDoNotShow) {
  EngineHarness harness(dir.path(), options);
  const auto sequences = ragged_sequences(5, 60, harness.engine().config().vocab_size, 9);
  const auto reference = harness.logits(sequences, 1);

  engine::EngineOptions plain = options;
  plain.use_graphs = false;
  EngineHarness other(dir.path(), plain, /*threads=*/5);
  // Blocks come in another order.
  std::vector<BlockId> held;
  for (int i = 0; i < 9; ++i) held.push_back(other.engine().cache().alloc_block());
  other.engine().cache().free_blocks(held);

  const auto result = other.logits(sequences, 1);
  for (std::size_t s = 0; s < sequences.size(); ++s) EXPECT_TRUE(same_bits(result[s], reference[s])) << s;
}

INSTANTIATE_TEST_SUITE_P(
    Models, Exactness,
    testing::Values(ExactnessCase{"tiny_base", quant::ElementType::kBf16, 16, quant::KvFormat::kBf16},
                    ExactnessCase{"tiny_base", quant::ElementType::kF32, 64, quant::KvFormat::kFp32},
                    ExactnessCase{"tiny_llama3", quant::ElementType::kBf16, 32, quant::KvFormat::kBf16},
                    ExactnessCase{"tiny_linear", quant::ElementType::kF32, 16, quant::KvFormat::kBf16},
                    ExactnessCase{"tiny_mqa", quant::ElementType::kF32, 128, quant::KvFormat::kFp32}),
    [](const auto& c) { return testing::PrintToString(c.param); });

TEST(ExactnessOfBlockSizes, BlockSizeDoesNotShow) {
  const TempDir dir;
  write_tiny_model(tiny_model("tiny_base"), dir.path());
  std::vector<float> first;
  for (const std::uint32_t block_size : {16U, 32U, 64U, 128U}) {
    engine::EngineOptions options;
    options.block_size = block_size;
    options.max_batch_tokens = 200;
    EngineHarness harness(dir.path(), options);
    const Tokens sequence = ragged_sequences(1, 300, harness.engine().config().vocab_size, 10).front();
    const auto logits = harness.logits_alone(sequence, 100);
    if (first.empty()) first = logits;
    EXPECT_TRUE(same_bits(logits, first)) << "block size " << block_size;
  }
}

TEST(ExactnessOfSampling, BatchMatesNeverChangeASampledText) {
  const TempDir dir;
  write_tiny_model(tiny_model("tiny_base"), dir.path());
  engine::EngineOptions options;
  options.max_batch_size = 8;
  options.max_batch_tokens = 40;
  EngineHarness harness(dir.path(), options);
  const auto prompts = ragged_sequences(8, 30, harness.engine().config().vocab_size, 11);
  const auto request = [&](std::size_t i) {
    engine::Request made{
        .prompt = prompts[i], .sampling = {}, .max_new_tokens = 20, .stop_ids = {}, .ignore_eos = true};
    made.sampling.seed = 100 + i;
    if (i % 2 != 0) made.sampling.top_k = 5;
    if (i % 3 == 0) made.sampling.repetition_penalty = 1.3F;
    if (i == 4) made.sampling.temperature = 0;
    return made;
  };
  std::vector<engine::Request> all;
  for (std::size_t i = 0; i < prompts.size(); ++i) all.push_back(request(i));

  const auto together = harness.generate(all);

  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(together[i].size(), 20U);
    EXPECT_EQ(harness.generate({request(i)}).front(), together[i]) << "request " << i;
  }
}

}  // namespace
}  // namespace metrale::test
