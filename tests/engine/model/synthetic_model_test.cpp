// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <support/temp_dir.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/base/hash.h>
#include <metrale/engine/synthetic_model.h>
#include <metrale/engine/tokenizer.h>
#include <metrale/quant/float_convert.h>
#include <metrale/weights/model_directory.h>

#include "engine/model/harness.h"
#include "engine/weight_plan.h"

namespace metrale::test {
namespace {

namespace fs = std::filesystem;
using engine::SyntheticModel;
using testing::ElementsAre;
using testing::HasSubstr;

std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::map<std::string, std::string> files_in(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = contents(entry.path());
  }
  return files;
}

// Every tensor's bytes, whatever file they are in.
std::map<std::string, std::vector<std::byte>> tensors_in(const std::string& path) {
  const auto directory = weights::ModelDirectory::open(path);
  std::map<std::string, std::vector<std::byte>> tensors;
  for (const weights::TensorRef& tensor : directory.tensors()) {
    auto& bytes = tensors[tensor.info().name];
    bytes.resize(tensor.info().size_bytes);
    directory.read_range(tensor, 0, bytes);
  }
  return tensors;
}

std::vector<float> values_of(const std::vector<std::byte>& bf16) {
  std::vector<float> values(bf16.size() / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bf16.data() + 2 * i, 2);
    values[i] = quant::bf16_to_float(bits);
  }
  return values;
}

double mean_power(const std::vector<float>& values, double center, int power) {
  double sum = 0;
  for (const float value : values) sum += std::pow(value - center, power);
  return sum / static_cast<double>(values.size());
}

SyntheticModel tiny(std::uint64_t seed = 0) {
  SyntheticModel model;
  model.seed = seed;
  return model;
}

struct Synthetic : testing::Test {
  void write(const std::string& name, const SyntheticModel& model, unsigned threads = 2,
             std::uint64_t max_shard_bytes = std::uint64_t{5} << 30) const {
    engine::write_synthetic_model(dir.file(name), model,
                                  {.max_shard_bytes = max_shard_bytes, .threads = threads, .progress = {}});
  }
  TempDir dir;
};

TEST_F(Synthetic, SameSeedIsTheSameBytesWhateverTheThreads) {
  write("one", tiny(7), 1);
  write("five", tiny(7), 5);
  EXPECT_EQ(files_in(dir.file("one")), files_in(dir.file("five")));
}

TEST_F(Synthetic, AnotherSeedIsAnotherModel) {
  write("a", tiny(1));
  write("b", tiny(2));
  const auto a = tensors_in(dir.file("a"));
  for (const auto& [name, bytes] : tensors_in(dir.file("b"))) EXPECT_NE(bytes, a.at(name)) << name;
}

// A change of these bytes makes every earlier measurement on synthetic models incomparable.
TEST_F(Synthetic, BytesOfASeedStayWhatTheyAre) {
  write("m", tiny(0));
  const std::string bytes = contents(dir.file("m") + "/model.safetensors");
  EXPECT_EQ(hash64(std::as_bytes(std::span(bytes))), 0xBD46A08E549CDCB4U);
}

TEST_F(Synthetic, ShardsHoldTheSameTensorsAndAnIndexNamesThem) {
  write("whole", tiny(3));
  write("shards", tiny(3), 2, 40'000);

  EXPECT_EQ(tensors_in(dir.file("shards")), tensors_in(dir.file("whole")));
  const auto directory = weights::ModelDirectory::open(dir.file("shards"));
  ASSERT_GT(directory.files().size(), 3U);
  for (const weights::SafetensorsFile& file : directory.files()) {
    std::uint64_t bytes = 0;
    for (const weights::TensorInfo& tensor : file.header().tensors()) bytes += tensor.size_bytes;
    EXPECT_TRUE(bytes <= 40'000 || file.header().tensors().size() == 1) << file.path();
  }
  const auto index = nlohmann::json::parse(contents(dir.file("shards") + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], directory.total_bytes());
  EXPECT_EQ(index["weight_map"].size(), directory.tensors().size());
  EXPECT_FALSE(fs::exists(dir.file("whole") + "/model.safetensors.index.json"));
}

TEST_F(Synthetic, MatricesAreNormalAndNormsAreAroundOne) {
  write("m", tiny(5));
  const auto tensors = tensors_in(dir.file("m"));
  const std::vector<float> matrix = values_of(tensors.at("model.embed_tokens.weight"));  // [512][64]
  const double variance = mean_power(matrix, 0, 2);
  EXPECT_NEAR(mean_power(matrix, 0, 1), 0, 0.003);
  EXPECT_NEAR(variance, 1.0 / 64, 0.001);
  EXPECT_NEAR(mean_power(matrix, 0, 4) / (variance * variance), 3, 0.15);
  // Neighbours are independent, also the four that one hash gives.
  for (const std::size_t distance : {1U, 2U, 3U, 4U, 64U}) {
    double sum = 0;
    for (std::size_t i = distance; i < matrix.size(); ++i) sum += double{matrix[i]} * matrix[i - distance];
    EXPECT_NEAR(sum / static_cast<double>(matrix.size()) / variance, 0, 0.03) << distance;
  }
  const std::vector<float> norm = values_of(tensors.at("model.norm.weight"));
  EXPECT_NEAR(mean_power(norm, 0, 1), 1, 0.05);
  EXPECT_NEAR(std::sqrt(mean_power(norm, 1, 2)), 0.1, 0.04);
  EXPECT_NE(tensors.at("model.layers.0.mlp.gate_proj.weight"),
            tensors.at("model.layers.1.mlp.gate_proj.weight"));
}

TEST_F(Synthetic, LogitsAreFiniteAndTellTokensApart) {
  const std::pair<const char*, quant::ElementType> kinds[] = {{"llama", quant::ElementType::kF32},
                                                              {"qwen3", quant::ElementType::kBf16},
                                                              {"mistral", quant::ElementType::kF16}};
  for (const auto& [architecture, dtype] : kinds) {
    SyntheticModel model = tiny(9);
    model.architecture = architecture;
    model.dtype = dtype;
    const std::string name = architecture;
    write(name, model);
    engine::EngineOptions options;
    options.max_seq_len = 64;
    EngineHarness harness(dir.file(name), options);

    const std::vector<float> logits = harness.logits_alone({256, 104, 101, 108, 108, 111}, 6);

    const double spread = std::sqrt(mean_power(logits, mean_power(logits, 0, 1), 2));
    EXPECT_GT(spread, 0.3) << name;
    EXPECT_LT(spread, 10) << name;
  }
}

TEST_F(Synthetic, TokenizerHasEveryByteAndEveryId) {
  write("m", tiny());
  const auto tokenizer = engine::Tokenizer::load(dir.file("m") + "/tokenizer.json");
  EXPECT_EQ(tokenizer.vocab_size(), 512U);
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every += static_cast<char>(byte);
  const auto ids = tokenizer.encode(every, {.add_special_tokens = false});
  ASSERT_EQ(ids.size(), 256U);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[static_cast<std::size_t>(byte)], byte);
  EXPECT_THAT(tokenizer.encode("h\xC3\xA9"), ElementsAre(256, 'h', 0xC3, 0xA9));
  EXPECT_TRUE(tokenizer.is_special(257));
}

TEST_F(Synthetic, TokenizerGrowsWithTheVocabulary) {
  const auto tokenizer = engine::Tokenizer::parse(engine::synthetic_tokenizer_json(128'256, false), "t");
  EXPECT_EQ(tokenizer.vocab_size(), 128'256U);
  EXPECT_THAT(tokenizer.encode("hi"), ElementsAre('h', 'i'));
  EXPECT_THROW((void)engine::synthetic_tokenizer_json(257, false), InvalidArgument);
}

TEST_F(Synthetic, DirectoryThatHoldsSomethingIsRefusedAndLeftAlone) {
  dir.write("m/notes.txt", "mine");
  EXPECT_THROW(write("m", tiny()), InvalidArgument);
  EXPECT_EQ(files_in(dir.file("m")), (std::map<std::string, std::string>{{"notes.txt", "mine"}}));
  dir.write("file", "");
  EXPECT_THROW(write("file", tiny()), IoError);
  EXPECT_THROW(write("no/parent", tiny()), IoError);
}

TEST_F(Synthetic, EmptyDirectoryIsFilled) {
  fs::create_directory(dir.file("m"));
  write("m", tiny());
  EXPECT_EQ(files_in(dir.file("m")).size(), 5U);
}

TEST_F(Synthetic, CancelLeavesNothing) {
  const auto stop_at = [](std::uint64_t bytes) {
    return [bytes](std::uint64_t done, std::uint64_t) { return done < bytes; };
  };
  const auto write_until = [&](const std::string& name, std::uint64_t bytes) {
    engine::write_synthetic_model(dir.file(name), tiny(),
                                  {.max_shard_bytes = 40'000, .threads = 2, .progress = stop_at(bytes)});
  };
  fs::create_directory(dir.file("there"));
  for (const std::uint64_t bytes : {1U, 100'000U, 230'000U}) {
    EXPECT_THROW(write_until("new", bytes), Cancelled);
    EXPECT_THROW(write_until("there", bytes), Cancelled);
    EXPECT_FALSE(fs::exists(dir.file("new")));
    EXPECT_TRUE(fs::is_empty(dir.file("there")));
  }
}

TEST_F(Synthetic, ProgressReachesTheTotal) {
  std::uint64_t last = 0;
  std::uint64_t all = 0;
  engine::SynthesisOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GT(done, last);
    last = done;
    all = total;
    return true;
  };
  engine::write_synthetic_model(dir.file("m"), tiny(), options);
  EXPECT_EQ(last, all);
  EXPECT_EQ(weights::ModelDirectory::open(dir.file("m")).total_bytes(), all);
}

TEST_F(Synthetic, UnknownModelNamesWhatThereIs) {
  SyntheticModel model;
  model.like = "70b";
  EXPECT_THROW((void)engine::synthetic_config_json(model), InvalidArgument);
}

// The published parameter counts of the models whose shapes these are.
TEST_F(Synthetic, LargeShapesHaveTheParametersOfTheirModels) {
  const auto parameters = [](const char* architecture, const char* like) {
    SyntheticModel model;
    model.architecture = architecture;
    model.like = like;
    const auto config = engine::parse_model_config(engine::synthetic_config_json(model), "config.json");
    std::uint64_t count = 0;
    for (const auto& tensor : engine::plan_weights(config, model.dtype).tensors) count += tensor.num_elems();
    return count;
  };
  EXPECT_EQ(parameters("llama", "1b"), 1'235'814'400U);
  EXPECT_EQ(parameters("llama", "8b"), 8'030'261'248U);
  EXPECT_EQ(parameters("qwen3", "1b"), 1'720'574'976U);
  EXPECT_EQ(parameters("qwen3", "8b"), 8'190'735'360U);
  EXPECT_EQ(parameters("mistral", "8b"), 7'241'732'096U);
}

}  // namespace
}  // namespace metrale::test
