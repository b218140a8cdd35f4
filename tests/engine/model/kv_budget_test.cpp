// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/engine/kv_calibrator.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

using quant::KvDtype;
using quant::KvFormat;

struct KvBudgetTest : testing::Test {
  KvBudgetTest() {
    TinyModel model = tiny_model("tiny_qwen3");
    model.config["head_dim"] = 64;
    write_tiny_model(model, dir.path());
    options.max_seq_len = 128;
    options.compute = quant::ElementType::kF32;
    harness = std::make_unique<EngineHarness>(dir.path(), options);
    std::mt19937 random(9);
    for (int i = 0; i < 60; ++i) text.push_back(static_cast<std::int32_t>(random() % 200));
    calibration = engine::calibrate_kv(kv_model(), {.tokens = text, .progress = {}});
  }

  [[nodiscard]] engine::KvModel kv_model() {
    return {harness->gpu(), harness->engine().config(), harness->engine().weights(),
            harness->engine().compute()};
  }
  engine::KvBudget choose(double bits, std::vector<KvFormat> formats = {}) {
    return engine::choose_kv_formats(
        kv_model(), {.tokens = text, .mean_bits = bits, .formats = std::move(formats), .progress = {}},
        calibration);
  }
  // Of the choice, as measured side by side.
  [[nodiscard]] double cost(const engine::KvBudget& budget) const {
    double sum = 0;
    for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
      const auto at = [&](KvFormat format) {
        return static_cast<std::size_t>(std::ranges::find(budget.formats, format) - budget.formats.begin());
      };
      sum += budget.divergences[i][0][at(calibration.layers[i].dtype->k)];
      sum += budget.divergences[i][1][at(calibration.layers[i].dtype->v)];
    }
    return sum;
  }

  TempDir dir;
  engine::EngineOptions options;
  Tokens text;
  engine::KvCalibration calibration;
  std::unique_ptr<EngineHarness> harness;
};

TEST_F(KvBudgetTest, ChoiceIsWithinTheBudgetAndNearTheBestOfAllChoices) {
  const engine::KvBudget budget = choose(4.0);
  ASSERT_EQ(budget.formats.size(), 4U);
  EXPECT_LE(budget.mean_bits, 4.0);
  EXPECT_GT(budget.divergence, 0);
  double best = 1e9;
  for (std::size_t code = 0; code < 4096; ++code) {  // three layers of two sides
    double bits = 0;
    double sum = 0;
    for (std::size_t side = 0; side < 6; ++side) {
      const std::size_t format = code >> (2 * side) & 3U;
      const KvDtype dtype{budget.formats[format], budget.formats[format]};
      bits += engine::mean_kv_bits(std::span(&dtype, 1), 64) / 6;
      sum += budget.divergences[side / 2][side % 2][format];
    }
    if (bits <= 4.0) best = std::min(best, sum);
  }
  EXPECT_LE(cost(budget), 1.5 * best);
}

TEST_F(KvBudgetTest, MoreBitsCostLess) {
  const engine::KvBudget narrow = choose(2.6);
  const double narrow_cost = cost(narrow);
  const engine::KvBudget wide = choose(8.2);
  EXPECT_LT(cost(wide), narrow_cost / 4);
  EXPECT_LT(wide.divergence, narrow.divergence);
  EXPECT_EQ(*calibration.layers[0].dtype, (KvDtype{KvFormat::kTurbo8i, KvFormat::kTurbo8i}));
}

TEST_F(KvBudgetTest, ChosenFormatsRunAsCalibrated) {
  (void)choose(4.0, {KvFormat::kNvfp4, KvFormat::kTurbo3});
  options.kv_dtype_calibrated = true;
  options.kv_calibration = calibration;
  EngineHarness run(dir.path(), options);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(run.engine().cache().dtype_for_layer(LayerId(static_cast<LayerId::Value>(i))),
              *calibration.layers[i].dtype);
  }
  EXPECT_EQ(run.logits_alone(text, 60).size(), text.size() * run.engine().config().vocab_size);
}

TEST_F(KvBudgetTest, AFormatOfEqualBitsThatIsWorseChangesNothing) {
  const engine::KvBudget with =
      choose(11, {KvFormat::kBf16, KvFormat::kNvfp4, KvFormat::kFp16, KvFormat::kNvfp4, KvFormat::kFp16});
  ASSERT_EQ(with.formats.size(), 3U);  // each once
  // What is compared with has a BF16 cache: BF16 costs nothing, and FP16 something.
  EXPECT_LE(with.mean_bits, 11);
  for (std::size_t i = 0; i < 3; ++i) {
    for (const KvFormat format : {calibration.layers[i].dtype->k, calibration.layers[i].dtype->v}) {
      EXPECT_TRUE(format == KvFormat::kBf16 || format == KvFormat::kNvfp4);
    }
  }
  EXPECT_EQ(with.divergences[0][0][1], 0);
}

TEST_F(KvBudgetTest, FormatThatBreaksTheModelIsNotChosen) {
  for (auto& layer : calibration.layers) {
    for (float& divisor : layer.k_equaliser) divisor = 1e-12F;  // no turbo3 step is so large
    for (float& mean : layer.k_mean) mean = 1e12F;
  }
  const engine::KvBudget budget = choose(8.5, {KvFormat::kTurbo3, KvFormat::kTurbo8i, KvFormat::kFp8});
  for (const auto& layer : calibration.layers) EXPECT_EQ(layer.dtype->k, KvFormat::kFp8);
  EXPECT_LT(budget.divergence, 1);
  EXPECT_THROW((void)choose(4.0, {KvFormat::kTurbo3}), InvalidArgument);
}

TEST_F(KvBudgetTest, BudgetThatNothingFitsAndFormatThatCannotBeAreRefused) {
  EXPECT_THAT([this] { (void)choose(2.0); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("turbo2")));
  text.resize(1);
  EXPECT_THROW((void)choose(4.0), InvalidArgument);
}

}  // namespace
}  // namespace metrale::test
