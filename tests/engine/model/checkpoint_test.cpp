// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are spelled otherwise, lack tensors or scale their FP8 matrices in another way.
#include <algorithm>
#include <cstring>
#include <support/temp_dir.h>
#include <support/tiny_model.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/quant/float_convert.h>

#include "engine/model/harness.h"
#include "engine/name_patterns.h"

namespace metrale::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const Tokens kPrompt{5, 17, 200, 3, 9, 250, 41};

void write_model(const TempDir& dir, const nlohmann::json& config, const std::vector<TinyTensor>& tensors) {
  dir.write("config.json", config.dump());
  write_safetensors(dir.file("model.safetensors"), tensors);
}

std::vector<float> logits_of(const TempDir& dir) {
  engine::EngineOptions options;
  options.max_seq_len = 64;
  EngineHarness harness(dir.path(), options);
  return harness.logits_alone(kPrompt, 64);
}

std::string load_error(const TempDir& dir) {
  try {
    (void)logits_of(dir);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

class Fp8 : public testing::Test {
 protected:
  TinyTensor& tensor(const std::string& name) { return *std::ranges::find(tensors, name, &TinyTensor::name); }
  void write() { write_model(dir, model.config, tensors); }

  static constexpr const char* kMatrix = "model.layers.1.mlp.up_proj.weight";
  TinyModel model = tiny_model("tiny_fp8_tensor");
  std::vector<TinyTensor> tensors = tiny_tensors(model);
  TempDir dir;
};

TEST_F(Fp8, ScaleOfEveryShapeThatSaysTheSameGivesTheSameLogits) {
  write();
  const std::vector<float> expected = logits_of(dir);
  TinyTensor& scale = tensor(std::string(kMatrix) + "_scale");
  const std::vector<std::byte> one = scale.bytes;
  const std::uint64_t rows = tensor(kMatrix).shape[0];
  for (const auto& shape : {std::vector<std::uint64_t>{}, {1, 1}, {rows}, {rows, 1}}) {
    scale.shape = shape;
    scale.bytes.clear();
    const std::uint64_t count = shape.empty() ? 1 : shape[0];
    for (std::uint64_t i = 0; i < count; ++i) scale.bytes.insert(scale.bytes.end(), one.begin(), one.end());
    write();
    EXPECT_TRUE(same_bits(logits_of(dir), expected)) << shape.size();
  }
}

TEST_F(Fp8, Bf16CheckpointWithTheMultipliedMatricesGivesTheSameLogits) {
  write();
  const std::vector<float> expected = logits_of(dir);
  std::erase_if(tensors, [](const TinyTensor& t) { return t.name.ends_with("_scale"); });
  const std::vector<TinyTensor> originals = tiny_tensors(model);
  for (TinyTensor& t : tensors) {
    if (t.dtype != "F8_E4M3") continue;
    const auto& scale = *std::ranges::find(originals, t.name + "_scale", &TinyTensor::name);
    float factor = 0;
    std::memcpy(&factor, scale.bytes.data(), sizeof factor);
    std::vector<std::byte> wide;
    for (const std::byte bits : t.bytes) {
      const std::uint16_t value =
          quant::float_to_bf16(quant::e4m3_to_float(static_cast<std::uint8_t>(bits)) * factor);
      wide.push_back(static_cast<std::byte>(value & 0xFFU));
      wide.push_back(static_cast<std::byte>(value >> 8));
    }
    t.bytes = std::move(wide);
    t.dtype = "BF16";
  }
  write();
  EXPECT_TRUE(same_bits(logits_of(dir), expected));
}

TEST_F(Fp8, MissingAndMisshapenScalesAreListedTogether) {
  std::erase_if(tensors, [](const TinyTensor& t) { return t.name == std::string(kMatrix) + "_scale"; });
  tensor("model.layers.0.mlp.down_proj.weight_scale") = {
      "model.layers.0.mlp.down_proj.weight_scale", "F32", {3}, std::vector<std::byte>(12)};
  write();
  EXPECT_THAT(load_error(dir),
              AllOf(HasSubstr("model.layers.1.mlp.up_proj.weight_scale is missing"),
                    HasSubstr("model.layers.0.mlp.down_proj.weight_scale has the shape [3]")));
}

TEST_F(Fp8, VectorsAreNotReadFromFp8) {
  TinyTensor& norm = tensor("model.norm.weight");
  norm.dtype = "F8_E4M3";
  norm.bytes.resize(norm.shape[0]);
  write();
  EXPECT_THAT(load_error(dir), HasSubstr("model.norm.weight is F8_E4M3"));
}

TEST(Checkpoint, DecoderInsideAModelWithImagesIsFoundUnderEitherSpelling) {
  const TinyModel model = tiny_model("tiny_gemma3");
  TempDir plain;
  write_model(plain, model.config, tiny_tensors(model));
  const std::vector<float> expected = logits_of(plain);
  nlohmann::json text = model.config;
  text.erase("architectures");
  const nlohmann::json config = {
      {"architectures", {"Gemma3ForConditionalGeneration"}}, {"model_type", "gemma3"}, {"text_config", text}};
  for (const std::string prefix : {"language_model.model.", "model.language_model."}) {
    std::vector<TinyTensor> tensors = tiny_tensors(model);
    for (TinyTensor& t : tensors) t.name = prefix + t.name.substr(std::string("model.").size());
    tensors.push_back({"vision_tower.patch.weight", "F32", {2}, std::vector<std::byte>(8)});
    TempDir dir;
    write_model(dir, config, tensors);
    EXPECT_TRUE(same_bits(logits_of(dir), expected)) << prefix;
  }
}

TEST(Checkpoint, EveryMissingTensorIsNamedOnce) {
  const TinyModel model = tiny_model("tiny_qwen3");
  std::vector<TinyTensor> tensors = tiny_tensors(model);
  std::erase_if(tensors, [](const TinyTensor& t) {
    return t.name.ends_with("k_norm.weight") || t.name == "lm_head.weight" ||
           t.name == "model.layers.1.mlp.up_proj.weight";
  });
  const TempDir dir;
  write_model(dir, model.config, tensors);
  EXPECT_THAT(load_error(dir),
              AllOf(HasSubstr("model.layers.*.self_attn.k_norm.weight is missing (3 layers)"),
                    HasSubstr("model.layers.1.mlp.up_proj.weight is missing"),
                    HasSubstr("lm_head.weight is missing"), Not(HasSubstr("q_norm"))));
}

TEST(ListByPattern, TellsEveryEntryAndEveryPatternOnce) {
  const std::vector<std::string> entries{
      "a",        "x.layers.0.w is missing", "b",          "x.layers.11.w is missing",
      "layers.0", "x.layers.7.v is missing", "x.layers.q", "x.layers.3"};
  EXPECT_EQ(
      engine::list_by_pattern(entries),
      "a; x.layers.*.w is missing (2 layers); b; layers.0; x.layers.7.v is missing; x.layers.q; x.layers.3");
  EXPECT_EQ(engine::list_by_pattern({}), "");
}

}  // namespace
}  // namespace metrale::test
