// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/engine/kv_calibration.h>
#include <metrale/quant/hadamard.h>

#include "engine/kv_constants.h"

namespace metrale::test {
namespace {

using engine::KvCalibration;
using nlohmann::json;
using quant::KvDtype;
using quant::KvFormat;
using testing::HasSubstr;
using testing::ThrowsMessage;

KvCalibration sample() {
  KvCalibration calibration{.num_kv_heads = 2, .head_dim = 3, .tokens = 7, .layers = {}};
  calibration.layers.resize(3);
  float next = 0.1F;
  for (engine::KvLayerCalibration& layer : calibration.layers) {
    for (int head = 0; head < 2; ++head) {
      layer.k_range.push_back(next += 1.37F);
      layer.v_range.push_back(next += 1.37F);
    }
  }
  for (int i = 0; i < 6; ++i) {
    calibration.layers[1].k_mean.push_back(static_cast<float>(i) / 3 - 1);
    calibration.layers[1].k_equaliser.push_back(1e-3F + static_cast<float>(i) / 7);
    calibration.layers[1].v_equaliser.push_back(1e10F / static_cast<float>(i + 3));
  }
  calibration.layers[1].dtype = KvDtype{KvFormat::kFp8, KvFormat::kTurbo3};
  calibration.layers[2].high_precision = true;
  return calibration;
}

TEST(KvCalibrationFile, ReadsBackWhatWasWrittenToTheBit) {
  EXPECT_EQ(engine::parse_kv_calibration(engine::to_json(sample()), "file"), sample());
}

TEST(KvCalibrationFile, WrongFieldIsNamed) {
  const auto refused = [](const std::string& pointer, const json& value, const std::string& name) {
    json document = json::parse(engine::to_json(sample()));
    document[json::json_pointer(pointer)] = value;
    EXPECT_THAT([&] { (void)engine::parse_kv_calibration(document.dump(), "cal.json"); },
                ThrowsMessage<FormatError>(testing::AllOf(HasSubstr("cal.json"), HasSubstr(name))))
        << pointer;
  };
  refused("/format", "other", "format");
  refused("/layers", json::array(), "layers");
  refused("/layers", 5, "layers");
  refused("/layers/0", 5, "element 0");
  refused("/num_kv_heads", 0, "num_kv_heads");
  refused("/head_dim", 100'000, "head_dim");
  refused("/layers/0/k_range", json::array({1.0}), "layers[0].k_range");
  refused("/layers/0/k_range", json::array({1.0, 0.0}), "layers[0].k_range");
  refused("/layers/0/v_range", json::array({1.0, "x"}), "layers[0].v_range");
  refused("/layers/0/v_range", json::array({1.0, 1e300}), "layers[0].v_range");
  refused("/layers/1/k_equaliser", json::array({1, 1, 1, 1, 1, -1}), "layers[1].k_equaliser");
  // Scales and reciprocals of these are no normal floats.
  refused("/layers/1/k_equaliser", json::array({1, 1, 1, 1, 1, 1e-40}), "layers[1].k_equaliser");
  refused("/layers/1/v_equaliser", json::array({1, 1, 1, 1, 1, 1e38}), "layers[1].v_equaliser");
  refused("/layers/1/k_mean", json::array({1, 1, 1, 1, 1, 1e38}), "layers[1].k_mean");
  refused("/layers/0/k_range", json::array({1.0, 1e-42}), "layers[0].k_range");
  refused("/layers/1/kv_dtype", "int5", "layers[1].kv_dtype");
  refused("/layers/2/high_precision", 1, "layers[2].high_precision");
}

TEST(KvCalibrationFile, RangesMustBeThereAndAnotherVersionIsUnsupported) {
  json document = json::parse(engine::to_json(sample()));
  document["layers"][2].erase("k_range");
  EXPECT_THAT([&] { (void)engine::parse_kv_calibration(document.dump(), "f"); },
              ThrowsMessage<FormatError>(HasSubstr("layers[2].k_range")));
  document = json::parse(engine::to_json(sample()));
  document["version"] = 2;
  EXPECT_THROW((void)engine::parse_kv_calibration(document.dump(), "f"), Unsupported);
}

// Whatever happens to the bytes, the answer is a calibration or an error of ours.
TEST(KvCalibrationFile, DamagedTextIsRefusedOrReadNeverCrashes) {
  const std::string good = engine::to_json(sample());
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = good;
    for (std::size_t edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 40);
      } else {
        text[at] = static_cast<char>(random() % 3 == 0 ? random() : "0{}[],\":-e."[random() % 11]);
      }
      if (text.empty()) text = "{";
    }
    try {
      (void)engine::parse_kv_calibration(text, "damaged");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(KvCalibrationFile, NestedWithoutEndIsRefused) {
  const std::string deep(1'000'000, '[');
  EXPECT_THROW((void)engine::parse_kv_calibration("{\"format\": " + deep, "deep"), FormatError);
  EXPECT_THAT(
      [&] {
        (void)engine::parse_kv_calibration("{\"a\": " + std::string(65, '[') + std::string(65, ']') + "}",
                                           "deep");
      },
      ThrowsMessage<FormatError>(HasSubstr("nested more than 64 deep")));
}

TEST(KvCalibration, AnotherModelIsRefusedByItsShape) {
  engine::ModelConfig config;
  config.num_layers = 3;
  config.num_kv_heads = 2;
  config.head_dim = 3;
  sample().check_fits(config);
  config.head_dim = 4;
  EXPECT_THAT([&] { sample().check_fits(config); },
              ThrowsMessage<InvalidArgument>(HasSubstr("3 layers of 2 KV heads of 3")));
}

TEST(KvConstants, EqualiserDividesKeysAndMultipliesTheirQueriesLayerByLayer) {
  engine::ModelConfig config;
  config.num_layers = 3;
  config.num_kv_heads = 2;
  config.head_dim = 3;
  const KvCalibration calibration = sample();
  const std::vector<KvDtype> dtypes{
      {}, {KvFormat::kFp8, KvFormat::kTurbo3}, {KvFormat::kBf16, KvFormat::kNvfp4}};
  const std::vector<float> constants = engine::kv_constants(config, dtypes, &calibration);
  const engine::KvConstantsLayout at(2, 3);
  ASSERT_EQ(constants.size(), 3 * at.layer_floats);
  const auto of_layer = [&](std::size_t layer) {
    return std::span(constants).subspan(layer * at.layer_floats);
  };
  const engine::KvLayerCalibration& layer = calibration.layers[1];
  for (std::size_t i = 0; i < 6; ++i) {
    const float sign = quant::diagonal_sign(42, static_cast<std::uint32_t>(i % 3));
    EXPECT_EQ(of_layer(1)[at.k_diagonal + i], sign / layer.k_equaliser[i]);
    EXPECT_EQ(of_layer(1)[at.q_diagonal + i], sign * layer.k_equaliser[i]);
    EXPECT_EQ(of_layer(1)[at.k_mean + i], layer.k_mean[i]);
    EXPECT_EQ(of_layer(1)[at.v_diagonal + i], sign / layer.v_equaliser[i]);
    EXPECT_EQ(of_layer(1)[at.out_diagonal + i], sign * layer.v_equaliser[i]);
    EXPECT_EQ(of_layer(0)[at.k_diagonal + i], sign);
  }
  for (std::size_t head = 0; head < 2; ++head) {
    EXPECT_EQ(of_layer(1)[at.k_scales + head], layer.k_range[head] / 448);
    EXPECT_EQ(of_layer(1)[at.v_scales + head], 1);
    EXPECT_EQ(of_layer(2)[at.v_scales + head], calibration.layers[2].v_range[head] / 2688);
  }
}

TEST(KvDtypes, BoundaryAndMarkedLayersAreBf16) {
  const KvCalibration calibration = sample();
  const KvDtype turbo4{KvFormat::kTurbo4, KvFormat::kTurbo4};
  const KvDtype bf16;
  EXPECT_THAT(engine::resolve_kv_dtypes(5, turbo4, {.boundary_layers = 2}, nullptr),
              testing::ElementsAre(bf16, bf16, turbo4, bf16, bf16));
  EXPECT_THAT(engine::resolve_kv_dtypes(3, turbo4, {.calibrated = true}, &calibration),
              testing::ElementsAre(turbo4, turbo4, bf16));
  EXPECT_THAT(engine::resolve_kv_dtypes(2, turbo4, {.boundary_layers = 9}, nullptr),
              testing::ElementsAre(bf16, bf16));
  // One that measured no layer's cost has no opinion.
  KvCalibration ranges_alone = calibration;
  for (auto& layer : ranges_alone.layers) {
    layer.dtype.reset();
    layer.high_precision = false;
  }
  EXPECT_THROW((void)engine::resolve_kv_dtypes(3, turbo4, {.calibrated = true}, &ranges_alone),
               InvalidArgument);
}

TEST(KvDtypes, WhatWasNotCalibratedIsRefused) {
  KvCalibration calibration = sample();
  EXPECT_THROW((void)engine::resolve_kv_dtypes(3, std::nullopt, {}, nullptr), InvalidArgument);
  EXPECT_THROW((void)engine::resolve_kv_dtypes(3, KvDtype{}, {.calibrated = true}, nullptr), InvalidArgument);
  EXPECT_THAT([&] { (void)engine::resolve_kv_dtypes(3, std::nullopt, {}, &calibration); },
              ThrowsMessage<InvalidArgument>(HasSubstr("layer 0")));
  for (auto& layer : calibration.layers) layer.dtype = KvDtype{KvFormat::kTurbo2, KvFormat::kFp8};
  EXPECT_EQ(engine::resolve_kv_dtypes(3, std::nullopt, {}, &calibration)[2], *calibration.layers[0].dtype);
}

TEST(KvDtypes, MeanBitsCountHeadersOfBothSides) {
  const std::vector<KvDtype> layers{{KvFormat::kTurbo4, KvFormat::kTurbo4},
                                    {KvFormat::kTurbo2, KvFormat::kBf16}};
  EXPECT_DOUBLE_EQ(engine::mean_kv_bits(layers, 128), (4.5 + 4.5 + 2.5 + 16) / 4);
  EXPECT_TRUE(engine::needs_kv_scales(std::vector<KvDtype>{{}, {KvFormat::kBf16, KvFormat::kNvfp4}}));
  EXPECT_FALSE(engine::needs_kv_scales(layers));
}

}  // namespace
}  // namespace metrale::test
