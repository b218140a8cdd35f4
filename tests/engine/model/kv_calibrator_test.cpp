// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>
#include <random>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/engine/kv_calibrator.h>
#include <metrale/engine/scoring.h>

#include "engine/model/harness.h"

namespace metrale::test {
namespace {

using engine::KvCalibration;
using quant::KvFormat;
using testing::HasSubstr;
using testing::ThrowsMessage;

Tokens random_tokens(std::size_t count, std::uint32_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  Tokens tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % vocab);
  return tokens;
}

struct KvCalibratorTest : testing::Test {
  KvCalibratorTest() {
    TinyModel model = tiny_model("tiny_qwen3");
    model.config["head_dim"] = 64;
    model.config["num_key_value_heads"] = 2;
    write_tiny_model(model, dir.path());
    options.max_seq_len = 256;
    options.max_batch_tokens = 64;
    options.compute = quant::ElementType::kF32;
  }

  [[nodiscard]] static engine::KvModel model_of(EngineHarness& harness) {
    return {harness.gpu(), harness.engine().config(), harness.engine().weights(), harness.engine().compute()};
  }
  // Logits of a text through a cache of this format.
  std::vector<float> logits(std::string_view dtype, const std::optional<KvCalibration>& calibration) {
    options.kv_dtype = quant::parse_kv_dtype(dtype);
    options.kv_calibration = calibration;
    EngineHarness harness(dir.path(), options);
    return harness.logits_alone(random_tokens(200, harness.engine().config().vocab_size, 3), 64);
  }
  std::uint64_t fingerprint(std::string_view dtype, const std::optional<KvCalibration>& calibration) {
    options.kv_dtype = quant::parse_kv_dtype(dtype);
    options.kv_calibration = calibration;
    return EngineHarness(dir.path(), options).engine().decoder().kv_fingerprint();
  }
  KvCalibration calibrate(std::size_t tokens, std::uint32_t window) {
    EngineHarness harness(dir.path(), options);
    const Tokens text = random_tokens(tokens, harness.engine().config().vocab_size, 5);
    return engine::calibrate_kv(model_of(harness), {.tokens = text, .window = window, .progress = {}});
  }

  TempDir dir;
  engine::EngineOptions options;
};

// Everything that attention saw of one layer.
struct Recorder final : engine::AttentionProbe {
  void do_take(std::uint32_t layer, std::uint32_t tokens, std::span<const float> qkv) override {
    if (layer != 1) return;
    rows += tokens;
    seen.insert(seen.end(), qkv.begin(), qkv.end());
  }
  std::size_t rows = 0;
  std::vector<float> seen;
};

TEST_F(KvCalibratorTest, MeasuresWhatAttentionWorksOn) {
  options.kv_dtype = quant::parse_kv_dtype("fp32");
  EngineHarness harness(dir.path(), options);
  const engine::ModelConfig& config = harness.engine().config();
  const Tokens text = random_tokens(90, config.vocab_size, 5);
  Recorder recorder;
  harness.engine().decoder().set_probe(&recorder);
  (void)harness.logits_alone(text, 64);
  harness.engine().decoder().set_probe(nullptr);
  const KvCalibration calibration =
      engine::calibrate_kv(model_of(harness), {.tokens = text, .window = 128, .progress = {}});

  ASSERT_EQ(recorder.rows, text.size());
  const std::size_t dims = config.head_dim;
  const std::size_t width = (config.num_q_heads + 2 * config.num_kv_heads) * dims;
  const std::size_t group = config.num_q_heads / config.num_kv_heads;
  const engine::KvLayerCalibration& layer = calibration.layers[1];
  for (std::size_t head = 0; head < config.num_kv_heads; ++head) {
    float k_peak = 0;
    float v_peak = 0;
    std::vector<double> wanted(dims);
    for (std::size_t c = 0; c < dims; ++c) {
      double sum = 0;
      double squares = 0;
      double q_squares = 0;
      for (std::size_t row = 0; row < recorder.rows; ++row) {
        const float* at = &recorder.seen[row * width + c];
        const float k = at[(config.num_q_heads + head) * dims];
        k_peak = std::max(k_peak, std::abs(k));
        v_peak = std::max(v_peak, std::abs(at[(config.num_q_heads + config.num_kv_heads + head) * dims]));
        sum += k;
        squares += double{k} * k;
        for (std::size_t q = head * group; q < (head + 1) * group; ++q) {
          q_squares += double{at[q * dims]} * at[q * dims] / static_cast<double>(group);
        }
      }
      const auto rows = static_cast<double>(recorder.rows);
      EXPECT_NEAR(layer.k_mean[head * dims + c], sum / rows, 1e-5);
      const double deviation = std::sqrt(squares / rows - sum / rows * sum / rows);
      EXPECT_NEAR(layer.k_equaliser[head * dims + c], std::sqrt(deviation / std::sqrt(q_squares / rows)),
                  1e-3);
    }
    EXPECT_EQ(layer.k_range[head], 2 * k_peak);
    EXPECT_EQ(layer.v_range[head], 2 * v_peak);
  }
}

TEST_F(KvCalibratorTest, ShortWindowsSeeEveryTokenAndTheResultIsReproducible) {
  const KvCalibration once = calibrate(130, 128);
  EXPECT_EQ(once, calibrate(130, 128));
  EXPECT_EQ(once.tokens, 130U);
  EXPECT_NE(once, calibrate(129, 128));  // the last token is a window of its own
}

TEST_F(KvCalibratorTest, EqualiserAndMeanChangeWhatIsStoredNotWhatItMeans) {
  const std::vector<float> exact = logits("fp32", std::nullopt);
  const KvCalibration calibration = calibrate(200, 200);
  const auto distance = [&](const std::vector<float>& other) {
    double squares = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) squares += std::pow(double{exact[i]} - other[i], 2);
    return std::sqrt(squares / static_cast<double>(exact.size()));
  };
  const double plain = distance(logits("turbo8i", std::nullopt));
  const double equalised = distance(logits("turbo8i", calibration));
  EXPECT_GT(plain, 0);
  EXPECT_GT(equalised, 0);
  EXPECT_LT(equalised, 2 * plain);
  EXPECT_LT(equalised, 0.05);
}

TEST_F(KvCalibratorTest, ScalesMeasuredAtLoadAreThoseOfTheBuiltInText) {
  for (const char* dtype : {"fp8", "nvfp4", "nvfp4_searched", "bf16:fp8", "fp8k4v"}) {
    const std::vector<float> exact = logits("fp32", std::nullopt);
    const std::vector<float> own = logits(dtype, std::nullopt);
    EXPECT_TRUE(same_bits(own, logits(dtype, std::nullopt))) << dtype;
    EXPECT_FALSE(same_bits(own, exact)) << dtype;
    double divergence = 0;
    const std::size_t vocab = exact.size() / 200;
    for (std::size_t at = 0; at < exact.size(); at += vocab) {
      divergence +=
          engine::logit_divergence(std::span(exact).subspan(at, vocab), std::span(own).subspan(at, vocab));
    }
    EXPECT_LT(divergence / 200, 0.05) << dtype;
  }
}

TEST_F(KvCalibratorTest, WideRangesCostFp8NextToNothingAndTinyOnesSaturate) {
  KvCalibration calibration = calibrate(200, 200);
  const auto scaled = [&](float factor) {
    KvCalibration other = calibration;
    for (auto& layer : other.layers) {
      for (auto* ranges : {&layer.k_range, &layer.v_range}) {
        for (float& range : *ranges) range *= factor;
      }
    }
    return other;
  };
  const std::vector<float> exact = logits("fp32", std::nullopt);
  const auto worst = [&](float factor) {
    const std::vector<float> other = logits("fp8", scaled(factor));
    float largest = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) largest = std::max(largest, std::abs(exact[i] - other[i]));
    return largest;
  };
  const float base = worst(1);
  EXPECT_LT(worst(2), 2 * base);
  EXPECT_GT(worst(1e-3F), 5 * base);
}

TEST_F(KvCalibratorTest, ScalesMeasuredAtLoadDoNotDependOnTheLimits) {
  for (const char* dtype : {"fp8", "nvfp4"}) {
    options.kv_dtype = quant::parse_kv_dtype(dtype);
    const Tokens text = random_tokens(20, 200, 3);
    options.max_seq_len = 256;
    EngineHarness wide(dir.path(), options);
    options.max_seq_len = 20;
    options.max_batch_tokens = 16;
    EngineHarness narrow(dir.path(), options);
    EXPECT_EQ(wide.engine().decoder().kv_fingerprint(), narrow.engine().decoder().kv_fingerprint()) << dtype;
    EXPECT_TRUE(same_bits(wide.logits_alone(text, 16), narrow.logits_alone(text, 16))) << dtype;
    options.max_batch_tokens = 64;
  }
}

TEST_F(KvCalibratorTest, WithoutATokenizerScalesCannotBeMeasured) {
  std::filesystem::remove(dir.file("tokenizer.json"));
  options.kv_dtype = quant::parse_kv_dtype("fp8");
  EXPECT_THAT([this] { EngineHarness(dir.path(), options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("metrale calibrate")));
}

TEST_F(KvCalibratorTest, FingerprintTellsCachesApartThatStoreDifferently) {
  const KvCalibration calibration = calibrate(50, 50);
  const std::uint64_t plain = fingerprint("turbo4", std::nullopt);
  EXPECT_EQ(plain, fingerprint("turbo4", std::nullopt));
  const std::uint64_t equalised = fingerprint("turbo4", calibration);
  std::vector<std::uint64_t> all{plain,
                                 equalised,
                                 fingerprint("turbo3", std::nullopt),
                                 fingerprint("turbo4:turbo3", std::nullopt),
                                 fingerprint("turbo3:turbo4", std::nullopt),
                                 fingerprint("fp8", calibration),
                                 fingerprint("nvfp4", calibration)};
  KvCalibration other = calibration;
  other.layers.back().k_mean.back() += 1e-3F;
  all.push_back(fingerprint("turbo4", other));
  other = calibration;
  other.layers.front().v_equaliser.front() *= 1.01F;
  all.push_back(fingerprint("turbo4", other));
  other = calibration;
  other.layers.front().k_range.front() *= 1.01F;
  all.push_back(fingerprint("fp8", other));
  EXPECT_EQ(fingerprint("turbo4", other), equalised);  // ranges mean nothing to it
  options.block_size = 32;
  all.push_back(fingerprint("turbo4", std::nullopt));
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
}

TEST_F(KvCalibratorTest, NothingToMeasureAndCancellationAreErrorsThatLeaveNothingBehind) {
  EngineHarness harness(dir.path(), options);
  const auto live = [&] { return harness.gpu().stats().allocs - harness.gpu().stats().frees; };
  const std::uint64_t before = live();
  EXPECT_THROW((void)engine::calibrate_kv(model_of(harness), {.tokens = {}, .progress = {}}),
               InvalidArgument);
  const Tokens text = random_tokens(100, 200, 1);
  EXPECT_THROW((void)engine::calibrate_kv(
                   model_of(harness),
                   {.tokens = text, .window = 50, .progress = [](auto done, auto) { return done == 0; }}),
               Cancelled);
  EXPECT_EQ(live(), before);
}

TEST_F(KvCalibratorTest, HighPrecisionLayersAreStoredInBf16) {
  options.kv_dtype = quant::parse_kv_dtype("turbo4");
  options.kv_high_precision.boundary_layers = 1;
  EngineHarness harness(dir.path(), options);
  const kv::PagedKvCache& cache = harness.engine().cache();
  EXPECT_EQ(cache.dtype_for_layer(LayerId(0)), quant::KvDtype{});
  EXPECT_EQ(cache.dtype_for_layer(LayerId(1)), options.kv_dtype);
  EXPECT_EQ(cache.dtype_for_layer(LayerId(2)), quant::KvDtype{});
  EXPECT_EQ(cache.dtype(), options.kv_dtype);
}

}  // namespace
}  // namespace metrale::test
