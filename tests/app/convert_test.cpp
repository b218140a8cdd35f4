// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <metrale/quant/float_convert.h>
#include <metrale/weights/model_directory.h>
#include <metrale/weights/safetensors_writer.h>

#include "app/program.h"

namespace metrale::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using weights::DType;
using weights::ModelDirectory;

// Name and content of every file, subdirectories too.
std::map<std::string, std::string> contents(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    files[fs::relative(entry.path(), directory).string()] =
        entry.is_regular_file() ? read_file(entry.path().string()) : "";
  }
  return files;
}

// Type, shape and bytes of every tensor.
std::map<std::string, std::string> tensors(const std::string& path) {
  const auto model = ModelDirectory::open(path);
  std::map<std::string, std::string> result;
  for (const auto& tensor : model.tensors()) {
    std::string bytes(tensor.info().size_bytes, '\0');
    model.read(tensor, std::as_writable_bytes(std::span(bytes)));
    std::string text(to_string(tensor.info().dtype));
    for (const std::uint64_t dim : tensor.info().shape) text += " " + std::to_string(dim);
    result[tensor.info().name] = text + ":" + bytes;
  }
  return result;
}

template <class T>
std::vector<T> elements(const std::string& path, const std::string& name) {
  const auto model = ModelDirectory::open(path);
  const auto* tensor = model.find(name);
  if (tensor == nullptr) return {};
  std::vector<T> values(tensor->info().size_bytes / sizeof(T));
  model.read(*tensor, std::as_writable_bytes(std::span(values)));
  return values;
}

struct Convert : testing::Test {
  [[nodiscard]] std::string in() const { return dir.file("in"); }
  [[nodiscard]] std::string out() const { return dir.file("out"); }
  void synth(std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {"synth", in()});
    ASSERT_EQ(metrale(flags).exit_code, 0);
  }
  [[nodiscard]] ProcessResult convert(std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {"convert", in(), "-o", out()});
    return metrale(std::move(flags));
  }
  // A model of one file, with these tensors of one dimension.
  template <class T>
  void write(DType dtype, const std::map<std::string, std::vector<T>>& named) const {
    fs::create_directory(in());
    std::vector<weights::TensorData> data;
    for (const auto& [name, values] : named)
      data.push_back({name, dtype, {values.size()}, std::as_bytes(std::span(values))});
    weights::write_safetensors(in() + "/model.safetensors", data, {{"format", "pt"}});
  }

  TempDir dir;
};

TEST_F(Convert, NothingChangedIsTheSameByteForByte) {
  for (const char* shards : {"5G", "50K"}) {
    SCOPED_TRACE(shards);
    fs::remove_all(in());
    fs::remove_all(out());
    synth({"--max-shard-size", shards});
    const ProcessResult result = convert();
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(contents(out()), contents(in()));
    // Nor where the type is the one it has.
    fs::remove_all(out());
    ASSERT_EQ(convert({"--dtype", "bf16"}).exit_code, 0);
    EXPECT_EQ(contents(out()), contents(in()));
  }
}

// Extra weights take the place of tensors in other files, which an index that is copied would still name.
TEST_F(Convert, IndexAgreesWithTheFilesWhereExtraWeightsReplaceTensors) {
  synth({"--max-shard-size", "50K"});
  const std::string name = ModelDirectory::open(in()).tensors()[0].info().name;
  const std::string bytes = "new";
  weights::write_safetensors(
      in() + "/extra_weights.safetensors",
      std::vector<weights::TensorData>{{name, DType::kU8, {3}, std::as_bytes(std::span(bytes))},
                                       {"another", DType::kU8, {3}, std::as_bytes(std::span(bytes))}});
  const auto expected = tensors(in());
  ASSERT_EQ(expected.at(name), "U8 3:new");
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--dtype", "fp16"}, {"--max-shard-bytes", "70KiB"}}) {
    SCOPED_TRACE(flags.empty() ? "nothing changed" : flags[0]);
    fs::remove_all(out());
    const ProcessResult result = convert(flags);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    if (flags.empty() || flags[0] != "--dtype") {
      EXPECT_EQ(tensors(out()), expected);
    } else {
      EXPECT_EQ(tensors(out()).size(), expected.size());
    }
    const ProcessResult checked = metrale({"verify", out()});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  }
}

TEST_F(Convert, ReshardingKeepsEveryTensorAndWritesTheIndex) {
  synth();
  ASSERT_EQ(convert({"--max-shard-bytes", "50KiB"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(out() + "/model.safetensors"));
  EXPECT_TRUE(fs::exists(out() + "/model-00001-of-00005.safetensors"));
  EXPECT_EQ(tensors(out()), tensors(in()));
  const json index = json::parse(read_file(out() + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], ModelDirectory::open(in()).total_bytes());
  EXPECT_EQ(index["weight_map"].size(), tensors(in()).size());
  for (const auto& entry : fs::directory_iterator(out())) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = weights::SafetensorsFile::open(entry.path().string());
    EXPECT_TRUE(file.header().data_bytes() <= 50 << 10 || file.header().tensors().size() == 1);
    EXPECT_EQ(file.header().metadata().at("format"), "pt");
  }
  // And back again.
  const std::string back = dir.file("back");
  ASSERT_EQ(metrale({"convert", out(), "-o", back, "--max-shard-bytes", "1G"}).exit_code, 0);
  EXPECT_EQ(contents(back), contents(in()));
}

TEST_F(Convert, TypesAreRoundedOnceToNearestEven) {
  const std::vector<float> values{0.0F, -0.0F,    1.0F,     1.0F + 0x1p-8F, 1.0F + 0x3p-8F,
                                  0.1F, -3.3e-6F, 0x1p-24F, 65504.0F};
  write<float>(DType::kF32, {{"a", values}});
  for (const char* dtype : {"bf16", "fp16"}) {
    ASSERT_EQ(convert({"--dtype", dtype, "--force"}).exit_code, 0);
    std::vector<std::uint16_t> expected;
    for (const float value : values) {
      expected.push_back(dtype == std::string("bf16") ? quant::float_to_bf16(value)
                                                      : quant::float_to_f16(value));
    }
    EXPECT_EQ(elements<std::uint16_t>(out(), "a"), expected) << dtype;
  }
  // 16 bits and back are exact.
  const std::string wide = dir.file("wide");
  ASSERT_EQ(metrale({"convert", out(), "-o", wide, "--dtype", "fp32"}).exit_code, 0);
  EXPECT_EQ(elements<float>(wide, "a")[5], quant::f16_to_float(quant::float_to_f16(0.1F)));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(elements<float>(wide, "a")[1]), 0x80000000U);
}

TEST_F(Convert, DoublesAreRoundedOnce) {
  // A hair above and below the middle of two bf16 values: as a float each is the middle itself.
  const double middle = 1.0 + 0x1p-8;
  const double huge = std::numeric_limits<double>::max();
  write<double>(DType::kF64, {{"a",
                               {middle + 0x1p-50, middle - 0x1p-50, -(middle + 0x1p-50), huge, 0x1p-1000,
                                -0x1p-1000, std::numeric_limits<double>::infinity()}}});
  const ProcessResult result = convert({"--dtype", "bf16", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(elements<std::uint16_t>(out(), "a"),
              ElementsAre(0x3F81, 0x3F80, 0xBF81, 0x7F80, 0x0000, 0x8000, 0x7F80));
  EXPECT_EQ(json::parse(result.out)["overflows"][0]["values"], 1);
  ASSERT_EQ(convert({"--dtype", "fp32", "--force"}).exit_code, 0);
  EXPECT_EQ(elements<float>(out(), "a")[0], static_cast<float>(middle));
}

TEST_F(Convert, OverflowsAreCountedAndNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  write<float>(DType::kF32, {{"big", {65519.0F, 65520.0F, -1e30F, inf, nan}}, {"small", {1.0F}}});
  const ProcessResult result = convert({"--dtype", "fp16", "--json"});
  ASSERT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("'big'"), HasSubstr("2 finite values")));
  EXPECT_THAT(result.err, Not(HasSubstr("small")));
  EXPECT_EQ(json::parse(result.out)["overflows"], json::parse(R"([{"tensor": "big", "values": 2}])"));
  EXPECT_THAT(elements<std::uint16_t>(out(), "big"), ElementsAre(0x7BFF, 0x7C00, 0xFC00, 0x7C00, 0x7E00));
}

TEST_F(Convert, LargeTensorsAreConvertedPieceByPiece) {
  std::vector<float> values((std::size_t{5} << 20) + 7);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  write<float>(DType::kF32, {{"a", values}});
  ASSERT_EQ(convert({"--dtype", "bf16"}).exit_code, 0);
  const auto halves = elements<std::uint16_t>(out(), "a");
  ASSERT_EQ(halves.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(halves[i], quant::float_to_bf16(values[i])) << i;
}

TEST_F(Convert, OtherTypesAndKeptTensorsStay) {
  write<float>(DType::kF32, {{"layer.weight", {1, 2}}, {"layer.scale", {3}}, {"norm", {4}}});
  const std::vector<std::int32_t> ids{7, 8};
  weights::write_safetensors(
      in() + "/model-00002-of-00002.safetensors",
      std::vector<weights::TensorData>{{"ids", DType::kI32, {2}, std::as_bytes(std::span(ids))}});
  fs::rename(in() + "/model.safetensors", in() + "/model-00001-of-00002.safetensors");
  const ProcessResult result = convert({"--dtype", "fp16", "--keep", "*.scale", "--keep", "n?rm", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["converted"], 1);
  const auto before = tensors(in());
  const auto after = tensors(out());
  for (const char* name : {"layer.scale", "norm", "ids"}) EXPECT_EQ(after.at(name), before.at(name)) << name;
  EXPECT_THAT(after.at("layer.weight"), testing::StartsWith("F16 2:"));
  EXPECT_TRUE(fs::exists(out() + "/model.safetensors.index.json"));
}

TEST_F(Convert, FilesBesideAreCopiedAndOldWeightsAreNot) {
  write<float>(DType::kF32, {{"a", {1}}});
  dir.write("in/config.json",
            "{\"torch_dtype\": \"float32\",  \"text_config\": {\"dtype\":\"bfloat16\"}, \"eps\": 1e-05}\n");
  dir.write("in/tokenizer.json", std::string(1000, '\0'));
  for (const char* name :
       {"pytorch_model.bin", "consolidated.safetensors", "metrale.manifest.json", ".gitattributes", "sub/x"})
    dir.write(std::string("in/") + name, "x");
  const ProcessResult result = convert({"--dtype", "fp16", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto files = contents(out());
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files.at("tokenizer.json"), std::string(1000, '\0'));
  EXPECT_EQ(files.at("config.json"),
            "{\"torch_dtype\": \"float16\",  \"text_config\": {\"dtype\":\"float16\"}, \"eps\": 1e-05}\n");
  EXPECT_EQ(json::parse(result.out)["copied"], json::parse(R"(["tokenizer.json", "config.json"])"));
}

TEST_F(Convert, ShardsMayHaveAnyNameThatTheIndexGives) {
  write<float>(DType::kF32, {{"x", {1, 2}}});
  fs::rename(in() + "/model.safetensors", in() + "/f1");
  const float three = 3;
  const weights::TensorData y{"y", DType::kF32, {1}, std::as_bytes(std::span(&three, 1))};
  weights::write_safetensors(in() + "/settings.json", std::vector{y}, {});
  dir.write("in/model.safetensors.index.json", R"({"weight_map":{"x":"f1","y":"settings.json"}})");
  dir.write("in/config.json", "{}");
  ASSERT_EQ(convert().exit_code, 0);
  EXPECT_EQ(tensors(out()), tensors(in()));
  EXPECT_EQ(contents(out()).size(), 4U);

  fs::remove_all(out());
  ASSERT_EQ(convert({"--max-shard-bytes", "1M"}).exit_code, 0);
  EXPECT_EQ(tensors(out()), tensors(in()));
  EXPECT_EQ(contents(out()).size(), 2U) << "model.safetensors and config.json";
}

TEST_F(Convert, ConvertedModelRuns) {
  synth();
  ASSERT_EQ(convert({"--dtype", "fp16", "--max-shard-bytes", "100K"}).exit_code, 0);
  const ProcessResult text = metrale({"generate", "-m", out(), "-p", "x", "-n", "3", "--ignore-eos"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.err, "");
  EXPECT_EQ(metrale({"verify", out()}).exit_code, 0);
}

TEST_F(Convert, SourceIsNeverWrittenInto) {
  synth();
  const auto before = contents(in());
  fs::create_directory_symlink(in(), dir.file("link"));
  for (const std::string& same : {in(), in() + "/.", dir.file("link")}) {
    const ProcessResult result = metrale({"convert", in(), "-o", same, "--dtype", "fp16", "--force"});
    EXPECT_EQ(result.exit_code, 2) << same;
    EXPECT_THAT(result.err, HasSubstr("source"));
  }
  EXPECT_EQ(metrale({"convert", in() + "/model.safetensors", "-o", in(), "--force"}).exit_code, 2);
  EXPECT_EQ(contents(in()), before);
}

TEST_F(Convert, DirectoryWithSomethingInItIsRefusedWithoutForce) {
  synth();
  dir.write("out/notes.txt", "mine");
  dir.write("out/model.safetensors.index.json", "old");
  dir.write("out/model-00001-of-00002.safetensors", "old");
  dir.write("out/metrale.manifest.json", "old");
  const auto before = contents(out());
  const ProcessResult refused = convert();
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("not empty"), HasSubstr("--force")));
  EXPECT_EQ(contents(out()), before);

  ASSERT_EQ(convert({"--force"}).exit_code, 0);
  auto after = contents(out());
  EXPECT_EQ(after["notes.txt"], "mine");
  after.erase("notes.txt");
  EXPECT_EQ(after, contents(in()));
}

TEST_F(Convert, FailureLeavesNothing) {
  synth({"--max-shard-size", "50K"});
  std::ofstream(in() + "/model-00003-of-00005.safetensors", std::ios::app) << "x";
  EXPECT_EQ(convert().exit_code, 3);
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(Convert, FullDiskLeavesNothing) {
  write<float>(DType::kF32, {{"a", std::vector<float>(100000)}});
  // A limit on the size of files stands for a disk that fills up.
  const ProcessResult result = run_process(
      {"/bin/bash", "-c", "ulimit -f 100; exec " METRALE_PROGRAM " convert " + in() + " -o " + out()});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("model.safetensors"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(Convert, InterruptLeavesNothing) {
  fs::create_directory(in());
  // Zeros that take no room and some time.
  constexpr std::uint64_t kElems = std::uint64_t{64} << 20;
  const auto layout =
      weights::lay_out_tensor_specs(std::vector<weights::TensorSpec>{{"a", DType::kF32, {kElems}}});
  dir.write("in/model.safetensors", layout.prefix);
  fs::resize_file(in() + "/model.safetensors", layout.prefix.size() + 4 * kElems);
  const std::string script = METRALE_PROGRAM " convert " + in() + " -o " + out() +
                             " --dtype fp32 & until [ -d " + out() + " ]; do :; done; kill -INT $!; wait $!";
  const ProcessResult result = run_process({"/bin/bash", "-c", script});
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(Convert, BadFlagsAreRefused) {
  synth();
  EXPECT_EQ(convert({"--dtype", "int8"}).exit_code, 2);
  EXPECT_EQ(convert({"--keep", "*"}).exit_code, 2);
  EXPECT_EQ(convert({"--max-shard-bytes", "0"}).exit_code, 2);
  EXPECT_EQ(convert({"--max-shard-bytes", "5GX"}).exit_code, 2);
  EXPECT_EQ(metrale({"convert", in()}).exit_code, 2);
  EXPECT_EQ(metrale({"convert", dir.file("absent"), "-o", out()}).exit_code, 4);
  EXPECT_FALSE(fs::exists(out()));
}

}  // namespace
}  // namespace metrale::test
