// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <support/temp_dir.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/engine/model_config.h>

namespace metrale::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

nlohmann::json smol() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 576},
          {"intermediate_size", 1536},
          {"num_hidden_layers", 30},
          {"num_attention_heads", 9},
          {"num_key_value_heads", 3},
          {"vocab_size", 49'152},
          {"max_position_embeddings", 8192},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 100'000},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

ModelConfig parse(const nlohmann::json& json) {
  return parse_model_config(json.dump(), "config.json");
}

// The message of the FormatError that parsing ends in.
std::string format_error(const nlohmann::json& json) {
  try {
    (void)parse(json);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<float> frequencies_of(const nlohmann::json& json) {
  const ModelConfig config = parse(json);
  return rope_inverse_frequencies(config.rope, config.head_dim);
}

TEST(ModelConfig, ReadsEveryField) {
  const ModelConfig config = parse(smol());
  EXPECT_EQ(config.hidden_size, 576U);
  EXPECT_EQ(config.num_layers, 30U);
  EXPECT_EQ(config.num_kv_heads, 3U);
  EXPECT_EQ(config.head_dim, 64U);
  EXPECT_EQ(config.rope.theta, 100'000.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.dtype, quant::ElementType::kBf16);
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
}

TEST(ModelConfig, GivenHeadDimWinsOverTheDerivedOne) {
  nlohmann::json json = smol();
  json["head_dim"] = 128;
  EXPECT_EQ(parse(json).head_dim, 128U);
}

TEST(ModelConfig, AbsentKvHeadsMeansAsManyAsQueryHeads) {
  nlohmann::json json = smol();
  json.erase("num_key_value_heads");
  EXPECT_EQ(parse(json).num_kv_heads, 9U);
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(json).num_kv_heads, 9U);
}

TEST(ModelConfig, UnknownArchitectureIsNamedWithWhatThereIs) {
  nlohmann::json json = smol();
  json["architectures"] = {"MambaForCausalLM"};
  try {
    (void)parse(json);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("MambaForCausalLM"));
    EXPECT_THAT(error.what(), HasSubstr("LlamaForCausalLM"));
  }
}

TEST(ModelConfig, QuantizedCheckpointIsUnsupported) {
  nlohmann::json json = smol();
  json["quantization_config"] = {{"quant_method", "gptq"}};
  EXPECT_THROW((void)parse(json), Unsupported);
}

TEST(ModelConfig, MissingFieldIsNamed) {
  for (const char* field :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    nlohmann::json json = smol();
    json.erase(field);
    EXPECT_THAT(format_error(json), HasSubstr(field));
    EXPECT_THAT(format_error(json), HasSubstr("absent"));
  }
}

TEST(ModelConfig, FieldOfTheWrongKindIsNamedWithItsValue) {
  for (const nlohmann::json& bad :
       {nlohmann::json(-1), nlohmann::json(0), nlohmann::json(1.5), nlohmann::json("576"),
        nlohmann::json(true), nlohmann::json(1ULL << 40)}) {
    nlohmann::json json = smol();
    json["hidden_size"] = bad;
    EXPECT_THAT(format_error(json), HasSubstr("\"hidden_size\" is " + bad.dump()));
  }
}

TEST(ModelConfig, ContradictoryHeadsAreRefused) {
  nlohmann::json json = smol();
  json["num_key_value_heads"] = 4;
  EXPECT_THAT(format_error(json), HasSubstr("a divisor of num_attention_heads (9)"));
  json = smol();
  json["num_attention_heads"] = 7;
  json["num_key_value_heads"] = 7;
  EXPECT_THAT(format_error(json), HasSubstr("a divisor of hidden_size (576)"));
  json = smol();
  json["head_dim"] = 63;
  EXPECT_THAT(format_error(json), HasSubstr("an even number"));
}

TEST(ModelConfig, SpecialTokenBeyondTheVocabularyIsRefused) {
  nlohmann::json json = smol();
  json["eos_token_id"] = {2, 49'152};
  EXPECT_THAT(format_error(json), HasSubstr("below vocab_size (49152)"));
}

TEST(ModelConfig, NumbersThatWouldGiveInfinitiesAreRefused) {
  nlohmann::json json = smol();
  json["rope_theta"] = 1e-300;
  EXPECT_THAT(format_error(json), HasSubstr("rope_theta"));
  json = smol();
  json["rms_norm_eps"] = 1e-300;
  EXPECT_THAT(format_error(json), HasSubstr("rms_norm_eps"));
}

TEST(ModelConfig, TextThatIsNotJsonNamesTheByte) {
  try {
    (void)parse_model_config("{\"hidden_size\": 5,,}", "dir/config.json");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("dir/config.json"));
    EXPECT_GT(error.offset(), 0U);
  }
  EXPECT_THROW((void)parse_model_config("[]", "x"), FormatError);
  EXPECT_THROW((void)parse_model_config("", "x"), FormatError);
}

TEST(ModelConfig, NumberBeyondDoubleIsAFormatError) {
  EXPECT_THROW((void)parse_model_config(R"({"rope_theta": 1e999})", "config.json"), FormatError);
}

TEST(ModelConfig, GenerationConfigDecidesWhatEndsAText) {
  const TempDir dir;
  dir.write("config.json", smol().dump());
  dir.write("generation_config.json", R"({"eos_token_id": [2, 7], "bos_token_id": 3})");
  const ModelConfig config = load_model_config(dir.path());
  EXPECT_THAT(config.eos_ids, ElementsAre(2, 7));
  EXPECT_EQ(config.bos_id, 3);
}

TEST(ModelConfig, MissingConfigIsAnIoError) {
  const TempDir dir;
  EXPECT_THROW((void)load_model_config(dir.path()), IoError);
}

TEST(Rope, UnscaledFrequenciesArePowersOfTheta) {
  const std::vector<float> frequencies = frequencies_of(smol());
  ASSERT_EQ(frequencies.size(), 32U);
  EXPECT_EQ(frequencies[0], 1.0F);
  EXPECT_FLOAT_EQ(frequencies[16], static_cast<float>(1 / std::sqrt(100'000.0)));
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  nlohmann::json json = smol();
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(frequencies_of(json)[0], 0.25F);
}

TEST(Rope, Llama3ScalingKeepsShortWavesAndStretchesLongOnes) {
  nlohmann::json json = smol();
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  const std::vector<float> plain = frequencies_of(smol());
  const std::vector<float> scaled = frequencies_of(json);
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_FLOAT_EQ(scaled.back(), plain.back() / 8);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_LE(scaled[i], plain[i]);
    EXPECT_GE(scaled[i], plain[i] / 8 * 0.999F);
  }
}

TEST(Rope, PartialRotationIsUnsupported) {
  nlohmann::json json = smol();
  json["partial_rotary_factor"] = 0.5;
  EXPECT_THROW((void)parse(json), Unsupported);
  json["partial_rotary_factor"] = 1.0;
  EXPECT_EQ(parse(json).head_dim, 64U);
}

TEST(Rope, UnknownScalingIsUnsupported) {
  nlohmann::json json = smol();
  json["rope_scaling"] = {{"rope_type", "longrope"}, {"factor", 2.0}};
  EXPECT_THROW((void)parse(json), Unsupported);
  json["rope_scaling"] = {{"rope_type", "linear"}};
  EXPECT_THAT(format_error(json), HasSubstr("rope_scaling.factor"));
}

}  // namespace
}  // namespace metrale::engine
