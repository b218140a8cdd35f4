// SPDX-License-Identifier: Apache-2.0
// Teacher-forced logits of the device against the CPU's: the same top token wherever the CPU's best two are
// more than 0.1 apart, and a mean KL divergence of at most 1e-3.
//
// The demo model is held to the CPU in FP32, its most exact computation. Two computations in BF16 round
// apart: the gap of a row's best two differs by 0.046 (standard deviation) between the CPU's own instruction
// sets too, so that some row near 0.1 has another top token by chance.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <support/golden.h>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <metrale/kernels/cuda_kernels.h>
#include <metrale/runtime/runtime.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

constexpr float kClearGap = 0.1F;
constexpr double kMaxMeanKl = 1e-3;

struct Comparison {
  std::size_t rows = 0;
  std::size_t clear_rows = 0;  // the reference's best two tokens are clearly apart
  std::size_t same_top = 0;    // of those
  double kl = 0;
  float largest_flip = 0;   // the widest gap between the reference's best two where the device chose another
  float largest_logit = 0;  // of the reference, in size
};

double log_sum(std::span<const float> row) {
  const double best = *std::ranges::max_element(row);
  double sum = 0;
  for (const float logit : row) sum += std::exp(logit - best);
  return best + std::log(sum);
}

void compare_row(std::span<const float> reference, std::span<const float> row, Comparison& all) {
  const auto best = std::ranges::max_element(reference);
  float second = -std::numeric_limits<float>::infinity();
  for (auto at = reference.begin(); at != reference.end(); ++at) {
    if (at != best) second = std::max(second, *at);
  }
  ++all.rows;
  const auto top = std::ranges::max_element(row) - row.begin();
  const bool same = top == best - reference.begin();
  if (!same) all.largest_flip = std::max(all.largest_flip, *best - second);
  all.largest_logit = std::max(all.largest_logit, std::abs(*best));
  if (*best - second > kClearGap) {
    ++all.clear_rows;
    all.same_top += same ? 1 : 0;
  }
  const double reference_sum = log_sum(reference);
  const double sum = log_sum(row);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double log_p = reference[i] - reference_sum;
    all.kl += std::exp(log_p) * (log_p - (row[i] - sum));
  }
}

Comparison compare(const std::string& directory, const engine::EngineOptions& reference,
                   const engine::EngineOptions& options, std::span<const Tokens> sequences,
                   std::size_t chunk) {
  EngineHarness cpu(directory, reference, runtime::open_backend({.device = "cpu"}));
  EngineHarness device(directory, options);
  const auto expected = cpu.logits(sequences, chunk);
  const auto actual = device.logits(sequences, chunk);
  const std::size_t vocab = cpu.engine().config().vocab_size;
  Comparison all;
  for (std::size_t s = 0; s < expected.size(); ++s) {
    for (std::size_t at = 0; at < expected[s].size(); at += vocab) {
      compare_row(std::span(expected[s]).subspan(at, vocab), std::span(actual[s]).subspan(at, vocab), all);
    }
  }
  return all;
}

double mean_kl(const Comparison& found) {
  return found.kl / static_cast<double>(found.rows);
}

void record(const Comparison& found, const std::string& prefix = "") {
  testing::Test::RecordProperty(prefix + "mean_kl", fmt::format("{:.3e}", mean_kl(found)));
  testing::Test::RecordProperty(prefix + "largest_flip", std::to_string(found.largest_flip));
  testing::Test::RecordProperty(prefix + "same_top", std::to_string(found.same_top));
  testing::Test::RecordProperty(prefix + "clear_rows", std::to_string(found.clear_rows));
  testing::Test::RecordProperty(prefix + "rows", std::to_string(found.rows));
}

void expect_parity(const Comparison& found) {
  record(found);
  EXPECT_GT(found.clear_rows, 0U) << "nothing was compared";
  EXPECT_EQ(found.same_top, found.clear_rows)
      << "of " << found.rows << " rows; widest gap that was lost: " << found.largest_flip
      << ", largest logit: " << found.largest_logit;
  EXPECT_LE(mean_kl(found), kMaxMeanKl);
}

engine::EngineOptions options_for(quant::ElementType compute, std::uint32_t max_seq_len,
                                  std::uint32_t batch) {
  engine::EngineOptions options;
  options.max_seq_len = max_seq_len;
  options.max_batch_size = batch;
  options.max_batch_tokens = 256;
  options.compute = compute;
  if (compute == quant::ElementType::kF32) {
    options.kv_dtype = {quant::KvFormat::kFp32, quant::KvFormat::kFp32};
  }
  return options;
}

struct ParityCase {
  std::string model;
  quant::ElementType compute;
  friend void PrintTo(const ParityCase& c, std::ostream* out) {
    *out << c.model << "_" << quant::to_string(c.compute);
  }
};

std::vector<ParityCase> parity_cases() {
  std::vector<ParityCase> cases;
  for (const std::string& model : tiny_model_names()) {
    cases.push_back({model, quant::ElementType::kF32});
    cases.push_back({model, quant::ElementType::kBf16});
  }
  return cases;
}

class TinyParity : public testing::TestWithParam<ParityCase> {};

TEST_P(TinyParity, DeviceAgreesWithTheCpu) {
  const TempDir dir;
  TinyModel model = tiny_model(GetParam().model);
  const bool is_long = model.name != "tiny_dynamic";  // whose scaling begins where its positions end
  if (is_long) model.config["max_position_embeddings"] = 2048;
  write_tiny_model(model, dir.path());
  std::mt19937 random(5);
  std::vector<Tokens> sequences(4);
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    sequences[s].resize(s == 0 && is_long ? 700 : 90);
    for (std::int32_t& token : sequences[s]) token = static_cast<std::int32_t>(random() % 256);
  }
  const engine::EngineOptions options = options_for(GetParam().compute, is_long ? 800 : 100, 4);
  expect_parity(compare(dir.path(), options, options, sequences, 64));
}

INSTANTIATE_TEST_SUITE_P(Models, TinyParity, testing::ValuesIn(parity_cases()),
                         [](const auto& c) { return testing::PrintToString(c.param); });

class SmolLm2Parity : public testing::TestWithParam<quant::ElementType> {};

TEST_P(SmolLm2Parity, DeviceAgreesWithTheCpu) {
  if (!std::filesystem::exists(demo_model_directory() + "/model.safetensors")) {
    GTEST_SKIP() << "the demo model is not there: scripts/get_demo_model.sh fetches it";
  }
  const GoldenFile golden("engine/smollm2_fp32");
  const auto tokens = golden.array<std::uint32_t>("tokens");
  std::vector<Tokens> prompts;
  for (std::size_t p = 0; p < tokens.shape[0]; ++p) {
    const auto prompt = tokens.at(p);
    prompts.emplace_back(prompt.begin(), prompt.end());
  }
  const engine::EngineOptions options = options_for(GetParam(), 128, 8);
  const engine::EngineOptions exact = options_for(quant::ElementType::kF32, 128, 8);
  expect_parity(compare(demo_model_directory(), exact, options, prompts, 32));

  const Comparison same_type = compare(demo_model_directory(), options, options, prompts, 32);
  record(same_type, "same_type_");
  EXPECT_GT(same_type.clear_rows, 0U);
  EXPECT_LE(mean_kl(same_type), kMaxMeanKl);
}

INSTANTIATE_TEST_SUITE_P(Types, SmolLm2Parity,
                         testing::Values(quant::ElementType::kF32, quant::ElementType::kBf16),
                         [](const auto& c) { return std::string(quant::to_string(c.param)); });

// Decode steps by FlashInfer's kernel: other sums, the same model.
TEST(SmolLm2FlashInfer, DecodeAgreesWithTheCpu) {
  if (!kernels::has_peer_kernels()) GTEST_SKIP() << "built without METRALE_PEERS";
  if (!std::filesystem::exists(demo_model_directory() + "/model.safetensors")) {
    GTEST_SKIP() << "the demo model is not there: scripts/get_demo_model.sh fetches it";
  }
  std::mt19937 random(6);
  std::vector<Tokens> sequences(3);
  for (Tokens& sequence : sequences) {
    sequence.resize(40);
    for (std::int32_t& token : sequence) token = static_cast<std::int32_t>(1000 + random() % 20000);
  }
  engine::EngineOptions options = options_for(quant::ElementType::kBf16, 64, 4);
  options.attention = engine::AttentionKernel::kFlashInfer;
  EngineHarness device(demo_model_directory(), options);
  options.attention = engine::AttentionKernel::kNative;
  EngineHarness cpu(demo_model_directory(), options, runtime::open_backend({.device = "cpu"}));

  const auto expected = cpu.logits(sequences, 1);
  const auto actual = device.logits(sequences, 1);

  const std::size_t vocab = cpu.engine().config().vocab_size;
  Comparison all;
  for (std::size_t s = 0; s < expected.size(); ++s) {
    for (std::size_t at = 0; at < expected[s].size(); at += vocab) {
      compare_row(std::span(expected[s]).subspan(at, vocab), std::span(actual[s]).subspan(at, vocab), all);
    }
  }
  expect_parity(all);
}

}  // namespace
}  // namespace metrale::test
