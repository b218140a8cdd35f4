// SPDX-License-Identifier: Apache-2.0
// What config.json means for each architecture, where fields are absent, null or contradict each other.
#include <cmath>
#include <string>
#include <support/temp_dir.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/engine/model_config.h>

namespace metrale::engine {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

nlohmann::json config_of(const char* architecture) {
  return {{"architectures", {architecture}},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 300}};
}

ModelConfig parse(const nlohmann::json& json) {
  return parse_model_config(json.dump(), "config.json");
}

template <class Failure>
std::string message(const nlohmann::json& json) {
  try {
    (void)parse(json);
  } catch (const Failure& error) {
    return error.what();
  }
  return "no error";
}

TEST(Architecture, IsFoundByModelTypeWhereArchitecturesAreAbsent) {
  nlohmann::json json = config_of("");
  json.erase("architectures");
  json["model_type"] = "qwen3";
  EXPECT_EQ(parse(json).architecture, "Qwen3ForCausalLM");
  json["model_type"] = "mamba";
  EXPECT_THAT(message<Unsupported>(json), HasSubstr("mamba"));
  json.erase("model_type");
  EXPECT_THAT(message<FormatError>(json), HasSubstr("architectures"));
  json["architectures"] = {"LlamaForCausalLM", "Other"};
  EXPECT_THAT(message<FormatError>(json), HasSubstr("an array with one name"));
}

TEST(Architecture, ModelTypeOfAnotherOneIsAContradiction) {
  nlohmann::json json = config_of("LlamaForCausalLM");
  json["model_type"] = "qwen3";
  EXPECT_THAT(message<FormatError>(json), AllOf(HasSubstr("model_type"), HasSubstr("\"llama\"")));
}

TEST(Mistral, WindowIsTheDefaultWhereAbsentAndNoneWhereNull) {
  nlohmann::json json = config_of("MistralForCausalLM");
  EXPECT_THAT(parse(json).layer_windows, ElementsAre(4096, 4096, 4096, 4096));
  json["sliding_window"] = nullptr;
  EXPECT_THAT(parse(json).layer_windows, Each(0U));
  json["sliding_window"] = 100;
  EXPECT_THAT(parse(json).layer_windows, Each(100U));
  json["sliding_window"] = -1;
  EXPECT_THAT(message<FormatError>(json), HasSubstr("sliding_window"));
}

TEST(Qwen2, HasBiasOnQueryKeyAndValueOnly) {
  const ModelConfig config = parse(config_of("Qwen2ForCausalLM"));
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_THAT(config.layer_windows, Each(0U));
}

TEST(Qwen2, WindowCountsFromMaxWindowLayersAndOnlyWhereItIsUsed) {
  nlohmann::json json = config_of("Qwen2ForCausalLM");
  json["sliding_window"] = 10;
  json["max_window_layers"] = 3;
  EXPECT_THAT(parse(json).layer_windows, Each(0U));
  json["use_sliding_window"] = true;
  EXPECT_THAT(parse(json).layer_windows, ElementsAre(0, 0, 0, 10));
  json["max_window_layers"] = 0;
  EXPECT_THAT(parse(json).layer_windows, Each(10U));
  json["sliding_window"] = nullptr;
  EXPECT_THAT(parse(json).layer_windows, Each(0U));
}

TEST(Qwen3, HeadDimIsTheDefaultWhereAbsentAndDerivedWhereNull) {
  nlohmann::json json = config_of("Qwen3ForCausalLM");
  EXPECT_EQ(parse(json).head_dim, 128U);
  EXPECT_TRUE(parse(json).qk_norm);
  EXPECT_FALSE(parse(json).qkv_bias);
  json["head_dim"] = nullptr;
  EXPECT_EQ(parse(json).head_dim, 16U);
}

TEST(Gemma3, AbsentFieldsHaveTheArchitecturesDefaults) {
  nlohmann::json json = config_of("Gemma3ForCausalLM");
  json["num_hidden_layers"] = 8;
  for (const char* field : {"num_attention_heads", "num_key_value_heads", "vocab_size"}) json.erase(field);

  const ModelConfig config = parse(json);

  EXPECT_EQ(config.num_q_heads, 8U);
  EXPECT_EQ(config.num_kv_heads, 4U);
  EXPECT_EQ(config.head_dim, 256U);
  EXPECT_EQ(config.vocab_size, 262'208U);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.norm_offset, 1);
  EXPECT_EQ(config.embedding_scale, 8);
  EXPECT_EQ(config.attention_scale, 1.0 / 16);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.local_rope->theta, 1e4);
  EXPECT_THAT(config.layer_windows, ElementsAre(4096, 4096, 4096, 4096, 4096, 0, 4096, 4096));
}

TEST(Gemma3, LayerTypesSayWhichLayersSlide) {
  nlohmann::json json = config_of("Gemma3ForCausalLM");
  json["sliding_window"] = 512;
  json["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(parse(json).layer_windows, ElementsAre(0, 512, 0, 512));
  json["layer_types"].push_back("full_attention");
  EXPECT_THAT(message<FormatError>(json), AllOf(HasSubstr("layer_types"), HasSubstr("4 times")));
  json["layer_types"] = {"full_attention", "chunked_attention", "full_attention", "full_attention"};
  EXPECT_THAT(message<FormatError>(json), HasSubstr("sliding_attention"));
}

TEST(Gemma3, RopeParametersOfEachLayerTypeAreRead) {
  nlohmann::json old_form = config_of("Gemma3ForCausalLM");
  old_form["rope_theta"] = 50'000.0;
  old_form["rope_local_base_freq"] = 700.0;
  old_form["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  nlohmann::json json = config_of("Gemma3ForCausalLM");
  json["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 50'000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 700.0}}}};

  for (const ModelConfig& config : {parse(old_form), parse(json)}) {
    EXPECT_EQ(config.rope.theta, 50'000.0);
    EXPECT_EQ(config.rope.scaling.kind, RopeScalingKind::kLinear);
    EXPECT_EQ(config.rope.scaling.factor, 8);
    ASSERT_TRUE(config.local_rope);
    EXPECT_EQ(config.local_rope->theta, 700.0);
    EXPECT_EQ(config.local_rope->scaling.kind, RopeScalingKind::kNone);
  }
}

TEST(Gemma3, DecoderOfAModelWithImagesIsReadFromItsTextConfig) {
  nlohmann::json text = config_of("Gemma3ForCausalLM");
  text.erase("architectures");
  text["model_type"] = "gemma3_text";
  const nlohmann::json json = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                               {"model_type", "gemma3"},
                               {"eos_token_id", {1, 106}},
                               {"torch_dtype", "bfloat16"},
                               {"vision_config", nlohmann::json::object()},
                               {"text_config", text}};

  const ModelConfig config = parse(json);

  EXPECT_EQ(config.hidden_size, 64U);
  EXPECT_THAT(config.eos_ids, ElementsAre(1, 106));
  EXPECT_EQ(config.dtype, quant::ElementType::kBf16);
  nlohmann::json broken = json;
  broken["text_config"]["hidden_size"] = "64";
  EXPECT_THAT(message<FormatError>(broken), HasSubstr("text_config.hidden_size"));
}

TEST(Gemma3, WhatIsNotComputedIsRefused) {
  for (const char* field : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    nlohmann::json json = config_of("Gemma3ForCausalLM");
    json[field] = nullptr;
    EXPECT_EQ(parse(json).architecture, "Gemma3ForCausalLM");
    json[field] = 30.0;
    EXPECT_THAT(message<Unsupported>(json), HasSubstr(field));
  }
}

TEST(Activation, UnknownOneIsNamed) {
  nlohmann::json json = config_of("LlamaForCausalLM");
  json["hidden_act"] = "relu";
  EXPECT_THAT(message<Unsupported>(json), AllOf(HasSubstr("hidden_act"), HasSubstr("relu")));
}

TEST(KvHeads, AbsentIsTheArchitecturesDefaultAndNullAsManyAsQueryHeads) {
  nlohmann::json json = config_of("MistralForCausalLM");
  json["num_attention_heads"] = 16;
  json.erase("num_key_value_heads");
  EXPECT_EQ(parse(json).num_kv_heads, 8U);
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(json).num_kv_heads, 16U);
}

TEST(Quantization, Fp8IsReadHoweverItIsDeclared) {
  nlohmann::json json = config_of("LlamaForCausalLM");
  json["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {64, 32}}};
  EXPECT_EQ(parse(json).fp8_tile.rows, 64U);
  EXPECT_EQ(parse(json).fp8_tile.columns, 32U);
  json["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}};
  EXPECT_EQ(parse(json).fp8_tile.rows, 128U);
  const nlohmann::json weights = {{"weights", {{"type", "float"}, {"num_bits", 8}}}};
  json["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"config_groups", {{"group_0", weights}}}};
  EXPECT_NO_THROW((void)parse(json));
}

TEST(RopeFields, ContradictionsAreRefused) {
  const nlohmann::json base = config_of("LlamaForCausalLM");
  nlohmann::json json = base;
  json["rope_theta"] = 10'000.0;
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500.0}};
  EXPECT_THAT(message<FormatError>(json), HasSubstr("rope_parameters.rope_theta"));
  json["rope_parameters"]["rope_theta"] = 10'000.0;
  EXPECT_NO_THROW((void)parse(json));
  json = base;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_THAT(message<FormatError>(json), HasSubstr("rope_parameters"));
  json["rope_parameters"] = json["rope_scaling"];
  EXPECT_NO_THROW((void)parse(json));
  json = base;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 4.0}};
  EXPECT_THAT(message<FormatError>(json), HasSubstr("rope_scaling.type"));
  json["rope_scaling"] = {{"factor", 4.0}};
  EXPECT_THAT(message<FormatError>(json), HasSubstr("rope_scaling.rope_type"));
}

TEST(RopeFields, Llama3NeedsAllOfItsFields) {
  nlohmann::json json = config_of("LlamaForCausalLM");
  const nlohmann::json whole = {{"rope_type", "llama3"},
                                {"factor", 8.0},
                                {"low_freq_factor", 1.0},
                                {"high_freq_factor", 4.0},
                                {"original_max_position_embeddings", 8192}};
  for (const char* field : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    json["rope_scaling"] = whole;
    EXPECT_NO_THROW((void)parse(json));
    json["rope_scaling"].erase(field);
    EXPECT_THAT(message<FormatError>(json), HasSubstr(field));
  }
}

TEST(Quantization, OtherMethodsAreRefusedByName) {
  nlohmann::json json = config_of("LlamaForCausalLM");
  const nlohmann::json int4 = {{"weights", {{"type", "int"}, {"num_bits", 4}}}};
  for (const nlohmann::json& method :
       {nlohmann::json{{"quant_method", "gptq"}}, nlohmann::json{{"quant_method", "modelopt"}},
        nlohmann::json{{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", int4}}}},
        nlohmann::json{{"quant_method", "compressed-tensors"},
                       {"config_groups", {{"g", {{"weights", {{"type", 5}, {"num_bits", "x"}}}}}}}},
        nlohmann::json{{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", 3}}}}}) {
    json["quantization_config"] = method;
    EXPECT_THAT(message<Unsupported>(json), HasSubstr("quantization_config")) << method;
  }
  json["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {0, 128}}};
  EXPECT_THAT(message<FormatError>(json), HasSubstr("weight_block_size"));
  json["quantization_config"] = "fp8";
  EXPECT_THAT(message<FormatError>(json), HasSubstr("quantization_config"));
}

std::vector<float> frequencies_of(const nlohmann::json& json) {
  const ModelConfig config = parse(json);
  return rope_inverse_frequencies(config.rope, config.head_dim);
}

TEST(Yarn, KeepsFastPairsAndStretchesSlowOnesByTheFactor) {
  nlohmann::json json = config_of("LlamaForCausalLM");
  json["head_dim"] = 128;
  const std::vector<float> plain = frequencies_of(json);
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4096}};
  const std::vector<float> scaled = frequencies_of(json);

  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_FLOAT_EQ(scaled.back(), plain.back() / 4);
  for (std::size_t i = 1; i < plain.size(); ++i) EXPECT_LT(scaled[i], scaled[i - 1]);
  EXPECT_FLOAT_EQ(static_cast<float>(parse(json).rope.scaling.attention_factor), 0.1F * std::log(4.0F) + 1);
  json["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(parse(json).rope.scaling.attention_factor, 1.5);
}

TEST(Yarn, EqualMscalesCancelEachOther) {
  nlohmann::json json = config_of("LlamaForCausalLM");
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale", 0.7}, {"mscale_all_dim", 0.7}};
  EXPECT_EQ(parse(json).rope.scaling.attention_factor, 1);
}

TEST(Dynamic, ReachesFactorTimesTheModelsPositions) {
  nlohmann::json json = config_of("LlamaForCausalLM");
  json["max_position_embeddings"] = 100;
  EXPECT_EQ(parse(json).max_positions(), 100U);
  json["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.5}};
  const ModelConfig config = parse(json);
  EXPECT_EQ(config.max_positions(), 250U);
  EXPECT_EQ(config.resolve_max_seq_len(0), 100U);
  EXPECT_EQ(config.resolve_max_seq_len(250), 250U);
  EXPECT_THROW((void)config.resolve_max_seq_len(251), InvalidArgument);
}

TEST(GenerationDefaults, OfSamplingCountOnlyWhereItIsAskedFor) {
  const auto read = [](const nlohmann::json& generation) {
    const TempDir dir;
    dir.write("config.json", config_of("LlamaForCausalLM").dump());
    dir.write("generation_config.json", generation.dump());
    return load_model_config(dir.path()).generation;
  };
  nlohmann::json generation = {{"temperature", 0.6}, {"top_p", 0.95}, {"top_k", 20}};
  generation["repetition_penalty"] = 1.5;
  EXPECT_FALSE(read(generation).temperature);
  EXPECT_EQ(read(generation).repetition_penalty, 1.5F);
  generation["do_sample"] = true;
  EXPECT_EQ(read(generation).temperature, 0.6F);
  EXPECT_EQ(read(generation).top_p, 0.95F);
  EXPECT_EQ(read(generation).top_k, 20);
  EXPECT_FALSE(read(generation).min_p);
  EXPECT_EQ(read({{"do_sample", true}}).temperature, 1.0F);
  EXPECT_THROW((void)read({{"do_sample", true}, {"top_p", 7}}), FormatError);
}

}  // namespace
}  // namespace metrale::engine
