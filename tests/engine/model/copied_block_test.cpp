// SPDX-License-Identifier: Apache-2.0
// A sequence in blocks that were copied from another's, as copy-on-write of a shared prefix leaves it, in
// every pair of KV formats that the engine takes: it goes on as the first one does, and on its own.
#include <algorithm>
#include <cmath>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gtest/gtest.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

using quant::KvDtype;

constexpr std::uint32_t kHeadDim = 64;  // the least that every format has vectors of

std::vector<KvDtype> served_pairs() {
  std::vector<KvDtype> pairs;
  for (const quant::KvFormatInfo& k : quant::kKvFormats) {
    for (const quant::KvFormatInfo& v : quant::kKvFormats) {
      const bool served = engine::why_no_kv_format(k.format, kHeadDim, serves_every_kv_format()).empty() &&
                          engine::why_no_kv_format(v.format, kHeadDim, serves_every_kv_format()).empty();
      if (served) pairs.push_back({k.format, v.format});
    }
  }
  return pairs;
}

// Row 0 of the block tables holds a prompt; row 1 continues it in copies of its blocks.
class CopiedBlocks : public testing::TestWithParam<KvDtype> {
 protected:
  CopiedBlocks() {
    TinyModel model = tiny_model("tiny_qwen3");
    model.config["head_dim"] = kHeadDim;
    write_tiny_model(model, dir.path());
    engine::EngineOptions options;
    options.max_seq_len = 64;
    options.max_batch_size = 2;
    options.kv_dtype = GetParam();
    harness = std::make_unique<EngineHarness>(dir.path(), options);
    for (std::size_t i = 0; i < 3; ++i) first.push_back(cache().alloc_block());
    for (std::size_t i = 0; i < 3; ++i) copies.push_back(cache().alloc_block());
    for (const BlockId block : copies) poison(block);
    for (std::int32_t token = 0; token < 37; ++token) prompt.push_back(token * 7 % 250);
    decoder().set_blocks(0, 0, first);
    decoder().set_blocks(1, 0, copies);
    step({{.table_row = 0, .start = 0, .tokens = prompt, .logit_rows = 1}});
    for (std::size_t i = 0; i < 3; ++i) decoder().copy_block(first[i], copies[i]);
  }

  void poison(BlockId block) {
    gpu::GpuBackend& gpu = harness->gpu();
    cache().poison_block(block, gpu, gpu.default_stream());
    gpu.synchronize(gpu.default_stream());
  }
  std::vector<float> step(const std::vector<engine::StepSequence>& batch) {
    decoder().run(batch);
    const std::span<const float> logits = decoder().read_logits();
    return {logits.begin(), logits.end()};
  }
  // The logits of the next token in one row.
  std::vector<float> next_in(std::uint32_t row, std::int32_t token) {
    const Tokens tokens{token};
    return step({{.table_row = row, .start = 37, .tokens = tokens, .logit_rows = 1}});
  }
  [[nodiscard]] kv::PagedKvCache& cache() { return harness->engine().cache(); }
  [[nodiscard]] engine::Decoder& decoder() { return harness->engine().decoder(); }

  TempDir dir;
  std::unique_ptr<EngineHarness> harness;
  std::vector<BlockId> first;
  std::vector<BlockId> copies;
  Tokens prompt;
};

std::size_t count_finite(const std::vector<float>& values) {
  return static_cast<std::size_t>(std::ranges::count_if(values, [](float v) { return std::isfinite(v); }));
}

TEST_P(CopiedBlocks, GiveTheLogitsOfTheFirstOnes) {
  const std::vector<float> expected = next_in(0, 11);
  EXPECT_EQ(count_finite(expected), expected.size());
  EXPECT_TRUE(same_bits(next_in(1, 11), expected));
}

TEST_P(CopiedBlocks, KeepThemWhenTheFirstOnesArePoisoned) {
  const std::vector<float> expected = next_in(1, 11);
  poison(first[0]);
  EXPECT_TRUE(same_bits(next_in(1, 11), expected));
  EXPECT_EQ(count_finite(next_in(0, 11)), 0U) << "a row that sees the poison";
}

TEST_P(CopiedBlocks, GoOnWithoutTheFirstOnesSeeingIt) {
  const std::vector<float> expected = next_in(0, 11);
  (void)next_in(1, 200);
  const Tokens last{11};
  EXPECT_TRUE(same_bits(step({{.table_row = 0, .start = 37, .tokens = last, .logit_rows = 1}}), expected));
}

INSTANTIATE_TEST_SUITE_P(Pairs, CopiedBlocks, testing::ValuesIn(served_pairs()), [](const auto& test) {
  return std::string(quant::to_string(test.param.k)) + "_" + std::string(quant::to_string(test.param.v));
});

}  // namespace
}  // namespace metrale::test
