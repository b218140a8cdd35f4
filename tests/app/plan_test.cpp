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
using testing::Not;

struct Plan : ProgramTest {
  [[nodiscard]] ProcessResult plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"plan", model()});
    return metrale(std::move(arguments));
  }
  [[nodiscard]] json document(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    const ProcessResult result = plan(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
};

TEST_F(Plan, ForCudaCountsWhatLibrariesWorkIn) {
  const auto buffers = [this](const char* device) {
    return document({"--memory", "1G", "--device", device})["arena"]["buffers"];
  };
  EXPECT_EQ(buffers("cuda")["linear_workspace"], 32 << 20);
  EXPECT_FALSE(buffers("cpu").contains("linear_workspace"));
  EXPECT_EQ(plan({"--memory", "1G", "--device", "tpu"}).exit_code, 2);
}

TEST_F(Plan, FiguresAreThoseThatAGenerationReports) {
  const std::vector<std::string> limits{"--max-seq-len",      "200", "--max-batch-size", "1",
                                        "--max-batch-tokens", "40",  "--block-size",     "32"};
  std::vector<std::string> generation{"--tokens", "1,2,3", "-n", "3", "--json", "--ignore-eos"};
  generation.insert(generation.end(), limits.begin(), limits.end());
  const json stats = json::parse(generate(generation).out)["stats"];

  std::vector<std::string> planning{"--memory", "1G", "--kv-dtype", "bf16"};
  planning.insert(planning.end(), limits.begin(), limits.end());
  const json planned = document(planning);

  EXPECT_EQ(planned["weights"]["bytes"], stats["weight_bytes"]);
  EXPECT_EQ(planned["arena"]["bytes"], stats["arena_bytes"]);
  EXPECT_EQ(planned["kv"][0]["bytes"], stats["kv_cache_bytes"]);
  EXPECT_EQ(planned["kv"][0]["bytes_per_token"], stats["kv_bytes_per_token"]);
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : planned["arena"]["buffers"].items()) sum += bytes.get<std::uint64_t>();
  EXPECT_EQ(sum, planned["arena"]["bytes"]);
}

TEST_F(Plan, EveryKvFormatIsPlanned) {
  const json planned = document({"--memory", "1G"});
  std::vector<std::string> names;
  for (const json& kv : planned["kv"]) names.push_back(kv["dtype"]);
  EXPECT_THAT(names, testing::ElementsAre("bf16", "fp32", "fp16", "fp8", "nvfp4", "turbo4", "turbo3",
                                          "turbo2", "turbo8", "turbo8i", "nvfp4_searched"));
  EXPECT_EQ(planned["kv"][0]["bytes_per_token"], 384);
  EXPECT_EQ(planned["kv"][1]["bytes_per_token"], 768);
  EXPECT_EQ(planned["kv"][4]["bytes_per_token"], 3 * 2 * 2 * (8 + 1));
}

TEST_F(Plan, AdviceMakesTheGenerationRun) {
  const std::string memory = "2200000";
  const ProcessResult text = plan({"--memory", memory, "--max-batch-size", "8", "--kv-dtype", "fp32"});
  const json planned = document({"--memory", memory, "--max-batch-size", "8", "--kv-dtype", "fp32"});
  const json advice = planned["kv"][0]["advice"];
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("does not fit"), HasSubstr("--max-seq-len " + advice["max_seq_len"].dump()),
                    HasSubstr("--max-batch-size " + advice["max_batch_size"].dump())));
  const auto run = [&](const std::string& seq_len) {
    return generate({"--tokens", "1,2", "-n", "1", "--memory", memory, "--max-batch-size", "8", "--kv-dtype",
                     "fp32", "--max-seq-len", seq_len})
        .exit_code;
  };
  EXPECT_EQ(run(advice["max_seq_len"].dump()), 0);
  EXPECT_EQ(run(std::to_string(advice["max_seq_len"].get<int>() + 1)), 5);
}

TEST_F(Plan, ExactlyEnoughNeedsNoAdvice) {
  const std::uint64_t bf16 = document({"--memory", "1G", "--max-batch-size", "8"})["kv"][0]["total_bytes"];
  const ProcessResult enough = plan({"--memory", std::to_string(bf16), "--max-batch-size", "8"});
  EXPECT_THAT(enough.out, Not(HasSubstr("makes room")));
  const ProcessResult less = plan({"--memory", std::to_string(bf16 - 1), "--max-batch-size", "8"});
  EXPECT_THAT(less.out, AllOf(HasSubstr("makes room"), HasSubstr("--max-batch-size 7")));
}

TEST_F(Plan, AnotherFormatThatFitsIsNamed) {
  const std::uint64_t bf16 = document({"--memory", "1G", "--max-batch-size", "8"})["kv"][0]["total_bytes"];
  const std::vector<std::string> flags{"--memory", std::to_string(bf16), "--max-batch-size",
                                       "8",        "--kv-dtype",         "fp32"};
  EXPECT_THAT(
      plan(flags).out,
      HasSubstr("\n  --kv-dtype bf16 or fp16 or fp8 or nvfp4 or turbo8 or turbo8i or nvfp4_searched\n"));
  EXPECT_EQ(document(flags)["kv"][0]["advice"]["kv_dtypes"],
            json::array({"bf16", "fp16", "fp8", "nvfp4", "turbo8", "turbo8i", "nvfp4_searched"}));
}

TEST_F(Plan, ConfigurationIsEnough) {
  const json with_weights = document({"--memory", "1G"});
  std::filesystem::remove(model() + "/model.safetensors");
  EXPECT_EQ(document({"--memory", "1G"}), with_weights);
}

TEST_F(Plan, BadInputIsRefused) {
  EXPECT_EQ(plan({}).exit_code, 2);
  EXPECT_EQ(plan({"--memory", "many"}).exit_code, 2);
  EXPECT_THAT(plan({"--memory", "1G", "--max-seq-len", "513"}).err,
              HasSubstr("the 512 positions of the model"));
  EXPECT_THAT(plan({"--memory", "1G", "--max-batch-size", "64", "--max-batch-tokens", "32"}).err,
              HasSubstr("max_batch_tokens (32)"));
  EXPECT_THAT(plan({"--memory", "1G", "--kv-dtype", "int5"}).err, HasSubstr("int5"));
  EXPECT_EQ(metrale({"plan", dir.file("nowhere"), "--memory", "1G"}).exit_code, 4);
}

}  // namespace
}  // namespace metrale::test
