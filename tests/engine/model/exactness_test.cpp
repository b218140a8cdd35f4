// SPDX-License-Identifier: Apache-2.0
// Exactness: a request's logits are bit-equal whatever it is batched with, however its prompt is cut,
// whichever blocks of whatever size hold it, on any number of threads. The reference is the sequence alone,
// in the largest chunks that a step takes; every way of running it that the engine offers has a test here.
#include <random>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gtest/gtest.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

using quant::ElementType;
using quant::KvFormat;

struct ExactnessCase {
  std::string model;
  ElementType compute;
  KvFormat kv;
  std::uint32_t window = 0;    // in place of the model's own
  std::uint32_t head_dim = 0;  // likewise
  friend void PrintTo(const ExactnessCase& c, std::ostream* os) {
    *os << c.model << "_" << quant::to_string(c.compute) << "_" << quant::to_string(c.kv);
    if (c.window != 0) *os << "_window" << c.window;
  }
};

// Every architecture and checkpoint type, in both element types that the decoder computes in.
std::vector<ExactnessCase> exactness_cases() {
  std::vector<ExactnessCase> cases;
  for (const std::string& model : tiny_model_names()) {
    cases.push_back({model, ElementType::kBf16, KvFormat::kBf16});
    cases.push_back({model, ElementType::kF32, KvFormat::kFp32});
  }
  cases.push_back({"tiny_base", ElementType::kF32, KvFormat::kBf16});
  cases.push_back({"tiny_base", ElementType::kBf16, KvFormat::kFp32});
  // Formats that are decoded first, and rotated ones.
  if (serves_every_kv_format()) {
    cases.push_back({"tiny_base", ElementType::kBf16, KvFormat::kFp16});
    cases.push_back({"tiny_qwen3", ElementType::kBf16, KvFormat::kTurbo8});
    cases.push_back({"tiny_qwen3", ElementType::kF32, KvFormat::kTurbo8i});
    // Scales measured on the built-in text.
    cases.push_back({"tiny_base", ElementType::kBf16, KvFormat::kFp8});
    cases.push_back({"tiny_mistral", ElementType::kF32, KvFormat::kNvfp4});
    cases.push_back({"tiny_qwen3", ElementType::kBf16, KvFormat::kTurbo4, 0, 64});
    cases.push_back({"tiny_qwen3", ElementType::kF32, KvFormat::kTurbo3, 0, 64});
    cases.push_back({"tiny_qwen3", ElementType::kBf16, KvFormat::kTurbo2, 0, 80});
  }
  // Windows that end in another split of 512 tokens than they begin in.
  cases.push_back({"tiny_mistral", ElementType::kBf16, KvFormat::kBf16, 300});
  cases.push_back({"tiny_gemma3", ElementType::kF32, KvFormat::kFp32, 513});
  return cases;
}

class Exactness : public testing::TestWithParam<ExactnessCase> {
 protected:
  Exactness() {
    TinyModel model = tiny_model(GetParam().model);
    // Dynamic scaling begins at this position, so it stays within the sequences.
    model.config["max_position_embeddings"] = model.name == "tiny_dynamic" ? 64 : 2048;
    if (GetParam().window != 0) model.config["sliding_window"] = GetParam().window;
    if (GetParam().head_dim != 0) model.config["head_dim"] = GetParam().head_dim;
    write_tiny_model(model, dir.path());
    options.max_seq_len = 1100;
    options.max_batch_size = 16;
    options.max_batch_tokens = 256;
    options.kv_dtype = {GetParam().kv, GetParam().kv};
    options.compute = GetParam().compute;
    RecordProperty("seed", static_cast<int>(seed));
  }

  // `count` sequences of 1 to `longest` tokens; the first one is the longest.
  std::vector<Tokens> sequences(std::size_t count, std::size_t longest, std::uint32_t vocab) {
    std::vector<Tokens> made(count);
    for (std::size_t s = 0; s < count; ++s) {
      made[s].resize(s == 0 ? longest : 1 + random() % longest);
      for (std::int32_t& token : made[s]) token = static_cast<std::int32_t>(random() % vocab);
    }
    return made;
  }

  // Chunks of 1 to 64 tokens, short ones more often; one time in four a sequence sits a step out.
  RunPlan random_plan() {
    return {.chunk =
                [this](std::size_t) {
                  return random() % 4 == 0 ? std::size_t{0} : 1 + random() % (std::size_t{1} << random() % 7);
                },
            .order_blocks = [this](std::vector<BlockId>& blocks) { std::ranges::shuffle(blocks, random); }};
  }

  static void expect_same(std::span<const std::vector<float>> actual,
                          std::span<const std::vector<float>> expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t s = 0; s < actual.size(); ++s) {
      EXPECT_TRUE(same_bits(actual[s], expected[s])) << "sequence " << s << ", seed " << seed;
    }
  }

  static std::vector<std::vector<float>> each_alone(EngineHarness& harness, std::span<const Tokens> all) {
    std::vector<std::vector<float>> result;
    for (const Tokens& sequence : all) result.push_back(harness.logits_alone(sequence, 256));
    return result;
  }

  static constexpr unsigned seed = 7;
  std::mt19937 random{seed};
  TempDir dir;
  engine::EngineOptions options;
};

TEST_P(Exactness, RaggedBatchesInRandomChunksOverShuffledBlocksEqualEachAlone) {
  EngineHarness harness(dir.path(), options);
  for (const std::size_t count : {16, 5, 2}) {
    const auto all = sequences(count, 90, harness.engine().config().vocab_size);
    expect_same(harness.logits(all, random_plan()), each_alone(harness, all));
  }
}

TEST_P(Exactness, ChunksOfALongSequenceDoNotShow) {
  EngineHarness harness(dir.path(), options);
  // Two splits of 512 tokens and a part.
  const auto all = sequences(1, 1050, harness.engine().config().vocab_size);
  const auto whole = each_alone(harness, all);

  expect_same(harness.logits(all, random_plan()), whole);
  expect_same(harness.logits(all, std::size_t{97}), whole);
}

TEST_P(Exactness, SingleTokensReplayedFromGraphsEqualOnePass) {
  EngineHarness harness(dir.path(), options);
  const auto all = sequences(3, 40, harness.engine().config().vocab_size);

  expect_same(harness.logits(all, std::size_t{1}), each_alone(harness, all));
  EXPECT_EQ(harness.engine().decoder().num_graphs() != 0, harness.gpu().capabilities().graphs);
}

TEST_P(Exactness, BlockSizeDoesNotShow) {
  std::vector<std::vector<float>> first;
  std::vector<Tokens> all;
  for (const std::uint32_t block_size : {16U, 32U, 64U, 128U}) {
    options.block_size = block_size;
    EngineHarness harness(dir.path(), options);
    if (all.empty()) all = sequences(3, 300, harness.engine().config().vocab_size);
    const auto logits = harness.logits(all, random_plan());
    if (first.empty()) first = logits;
    expect_same(logits, first);
  }
}

TEST_P(Exactness, ThreadsAndGraphsDoNotShow) {
  EngineHarness harness(dir.path(), options);
  const auto all = sequences(5, 60, harness.engine().config().vocab_size);
  const auto reference = harness.logits(all, std::size_t{1});
  options.use_graphs = false;
  EngineHarness other(dir.path(), options, /*threads=*/5);

  expect_same(other.logits(all, std::size_t{1}), reference);
}

INSTANTIATE_TEST_SUITE_P(Models, Exactness, testing::ValuesIn(exactness_cases()),
                         [](const auto& c) { return testing::PrintToString(c.param); });

TEST(ExactnessOfSampling, BatchMatesNeverChangeASampledText) {
  const TempDir dir;
  write_tiny_model(tiny_model("tiny_base"), dir.path());
  engine::EngineOptions options;
  options.max_batch_size = 8;
  options.max_batch_tokens = 40;
  EngineHarness harness(dir.path(), options);
  std::mt19937 random(11);
  std::vector<Tokens> prompts(8);
  for (Tokens& prompt : prompts) {
    prompt.resize(1 + random() % 30);
    for (std::int32_t& token : prompt) {
      token = static_cast<std::int32_t>(random() % harness.engine().config().vocab_size);
    }
  }
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
