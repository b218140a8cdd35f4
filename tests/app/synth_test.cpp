// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/program.h"

namespace metrale::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

struct Synth : testing::Test {
  TempDir dir;
};

TEST_F(Synth, ResultCanBeDescribedPlannedAndRun) {
  for (const std::string architecture : {"llama", "qwen3", "mistral"}) {
    SCOPED_TRACE(architecture);
    const std::string model = dir.file(architecture);
    const ProcessResult written =
        metrale({"synth", "--arch", architecture, "--like", "tiny", model, "--seed", "4"});
    ASSERT_EQ(written.exit_code, 0) << written.err;
    EXPECT_EQ(written.out + written.err, "");

    EXPECT_EQ(json::parse(metrale({"info", model, "--json"}).out)["layers"], 2);
    EXPECT_EQ(metrale({"plan", model, "--memory", "1G"}).exit_code, 0);
    const ProcessResult text =
        metrale({"generate", "-m", model, "-p", "hello", "-n", "9", "--json", "--ignore-eos"});
    ASSERT_EQ(text.exit_code, 0) << text.err;
    EXPECT_EQ(text.err, "");
    EXPECT_GE(json::parse(text.out)["prompt_tokens"], 5);
    EXPECT_EQ(json::parse(text.out)["tokens"].size(), 9U);
    EXPECT_THAT(metrale({"score", model, "--prompt", "a", "--continuation", "b"}).out,
                HasSubstr("perplexity"));
  }
}

TEST_F(Synth, ThreadsAndEnvironmentDoNotChangeTheModel) {
  ASSERT_EQ(metrale({"synth", dir.file("a"), "--threads", "3"}).exit_code, 0);
  ASSERT_EQ(metrale({"synth", dir.file("b")}, {.environment = {"METRALE_THREADS=1"}}).exit_code, 0);
  const auto answer = [&](const char* name) {
    return metrale({"generate", "-m", dir.file(name), "-p", "x", "-n", "20", "--ignore-eos"}).out;
  };
  EXPECT_EQ(answer("a"), answer("b"));
}

TEST_F(Synth, ShardsAreWrittenAndRead) {
  ASSERT_EQ(metrale({"synth", dir.file("m"), "--max-shard-size", "50K", "--dtype", "f32"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(dir.file("m") + "/model.safetensors.index.json"));
  EXPECT_EQ(json::parse(metrale({"info", dir.file("m"), "--json"}).out)["bytes_by_dtype"].size(), 1U);
  EXPECT_EQ(metrale({"generate", "-m", dir.file("m"), "-p", "x", "-n", "1"}).exit_code, 0);
}

TEST_F(Synth, BadFlagsAndDirectoriesAreRefused) {
  dir.write("full/file", "");
  const ProcessResult full = metrale({"synth", dir.file("full")});
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_THAT(full.err, AllOf(HasSubstr("full"), HasSubstr("not empty")));
  EXPECT_EQ(metrale({"synth"}).exit_code, 2);
  EXPECT_EQ(metrale({"synth", dir.file("m"), "--arch", "rwkv"}).exit_code, 2);
  EXPECT_EQ(metrale({"synth", dir.file("m"), "--like", "70b"}).exit_code, 2);
  EXPECT_EQ(metrale({"synth", dir.file("m"), "--max-shard-size", "0"}).exit_code, 2);
  EXPECT_EQ(metrale({"synth", dir.file("m"), "--seed", "-1"}).exit_code, 2);
  EXPECT_EQ(metrale({"synth", dir.file("no/m")}).exit_code, 4);
  EXPECT_FALSE(std::filesystem::exists(dir.file("m")));
}

}  // namespace
}  // namespace metrale::test
