// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <sstream>
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

using Info = ProgramTest;

TEST_F(Info, ModelDirectoryIsDescribed) {
  const json info = json::parse(metrale({"info", model(), "--json", "--tensors"}).out);
  EXPECT_EQ(info["architecture"], "LlamaForCausalLM");
  EXPECT_EQ(info["layers"], 3);
  EXPECT_EQ(info["kv_bytes_per_token_bf16"], 384);
  EXPECT_EQ(info["tensor_count"], info["tensors"].size());
  EXPECT_EQ(info["bytes"], info["parameters"].get<int>() * 2);
  EXPECT_THAT(metrale({"info", model()}).out, HasSubstr("LlamaForCausalLM"));
}

TEST_F(Info, SingleFileIsDescribed) {
  const json info = json::parse(metrale({"info", model() + "/model.safetensors", "--json"}).out);
  EXPECT_FALSE(info.contains("architecture"));
  EXPECT_GT(info["tensor_count"].get<int>(), 20);
  EXPECT_THAT(metrale({"info", model() + "/model.safetensors", "--tensors"}).out,
              HasSubstr("model.layers.2.mlp.down_proj.weight"));
}

TEST_F(Info, EveryTensorHasItsPlaceAndTotalsAreByType) {
  const json info = json::parse(metrale({"info", model(), "--json", "--tensors"}).out);
  std::uint64_t bytes = 0;
  for (const json& tensor : info["tensors"]) {
    EXPECT_EQ(tensor["file"], model() + "/model.safetensors");
    EXPECT_GT(tensor["offset"].get<std::uint64_t>(), 8U);
    bytes += tensor["bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(info["bytes"], bytes);
  EXPECT_EQ(info["files"], 1);
  ASSERT_EQ(info["dtypes"].size(), 1U);
  EXPECT_EQ(info["dtypes"]["BF16"]["bytes"], bytes);
  EXPECT_EQ(info["dtypes"]["BF16"]["tensors"], info["tensor_count"]);
  EXPECT_EQ(info["dtypes"]["BF16"]["parameters"], info["parameters"]);

  const json first = info["tensors"][0];
  const std::string text = metrale({"info", model(), "--tensors"}).out;
  EXPECT_THAT(text, HasSubstr("model.safetensors: " + first["name"].dump()));
  EXPECT_THAT(text, HasSubstr(" " + first["offset"].dump() + " "));
  EXPECT_THAT(text, HasSubstr(std::to_string(bytes) + " bytes"));
}

TEST_F(Info, PatternsChooseTensors) {
  const json one =
      json::parse(metrale({"info", model(), "--json", "--tensors", "--match", "*.1.mlp.up_*"}).out);
  ASSERT_EQ(one["tensor_count"], 1);
  EXPECT_EQ(one["tensors"][0]["name"], "model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(one["bytes"], one["tensors"][0]["bytes"]);
  const auto count = [&](std::vector<std::string> patterns) {
    std::vector<std::string> arguments{"info", model(), "--json"};
    for (const std::string& pattern : patterns) arguments.insert(arguments.end(), {"--match", pattern});
    return json::parse(metrale(arguments).out)["tensor_count"].get<int>();
  };
  EXPECT_EQ(count({"*.mlp.up_proj.weight"}), 3);
  EXPECT_EQ(count({"*.mlp.up_proj.weight", "*.?.mlp.down_proj.weight"}), 6);
  EXPECT_EQ(count({"mlp"}), 0);
  EXPECT_EQ(count({"*"}), count({}));
}

TEST_F(Info, DirectoryOfWeightsAloneIsDescribed) {
  std::filesystem::remove(model() + "/config.json");
  const json info = json::parse(metrale({"info", model(), "--json"}).out);
  EXPECT_FALSE(info.contains("architecture"));
  EXPECT_GT(info["tensor_count"], 20);
}

TEST_F(Info, WhatIsNoModelFailsWithItsName) {
  const ProcessResult absent = metrale({"info", dir.file("nothing")});
  EXPECT_EQ(absent.exit_code, 4);
  EXPECT_THAT(absent.err, HasSubstr("nothing"));
  dir.write("junk.safetensors", "junk");
  EXPECT_EQ(metrale({"info", dir.file("junk.safetensors")}).exit_code, 3);
}

TEST_F(Info, DevicesListsTheCpuAndSaysWhatIsMissingForCuda) {
  std::istringstream lines(metrale({"devices", "--json"}).out);
  std::vector<json> devices;
  for (std::string line; std::getline(lines, line);) devices.push_back(json::parse(line));

  ASSERT_GE(devices.size(), 2U);
  EXPECT_EQ(devices[0]["name"], "cpu");
  EXPECT_GT(devices[0]["total_memory_bytes"].get<std::uint64_t>(), 1U << 20);
  EXPECT_THAT(devices[1]["name"].get<std::string>(), testing::StartsWith("cuda"));
  if (devices[1]["total_memory_bytes"] == 0) {
    EXPECT_NE(devices[1]["unavailable"], "");
  }
  EXPECT_THAT(metrale({"devices"}).out, AllOf(HasSubstr("cpu"), HasSubstr("cuda")));
}

}  // namespace
}  // namespace metrale::test
