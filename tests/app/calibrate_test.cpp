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

struct Calibrate : ProgramTest {
  Calibrate() {
    TinyModel wide = tiny_model("tiny_qwen3");
    wide.config["head_dim"] = 64;
    write_tiny_model(wide, dir.file("wide"));
    std::string words;
    for (int i = 0; i < 60; ++i) words += "the " + std::to_string(i * i) + " tints, ";
    dir.write("text.txt", words);
  }

  [[nodiscard]] ProcessResult calibrate(std::vector<std::string> arguments) const {
    std::vector<std::string> all{"calibrate", "-m", dir.file("wide"), "-f", dir.file("text.txt")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return metrale(std::move(all));
  }
  [[nodiscard]] json score(std::vector<std::string> arguments) const {
    std::vector<std::string> all{"score", "-m", dir.file("wide"), "-f", dir.file("text.txt"), "--json"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const ProcessResult result = metrale(std::move(all));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
};

TEST_F(Calibrate, FileServesEveryCommandThatRunsTheModel) {
  const std::string file = dir.file("cal.json");
  const ProcessResult made = calibrate({"-o", file, "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(json::parse(made.out)["layers"], 3);

  const json plain = score({"--kv-dtype", "turbo4"});
  const json calibrated = score({"--kv-dtype", "turbo4", "--kv-calibration", file});
  EXPECT_GT(plain["mean_kl_divergence"], 0);
  EXPECT_GT(calibrated["mean_kl_divergence"], 0);
  EXPECT_NE(plain["mean_kl_divergence"], calibrated["mean_kl_divergence"]);
  EXPECT_LE(calibrated["same_top"], 1);
  const ProcessResult generated = metrale({"generate", "-m", dir.file("wide"), "-p", "the tints", "-n", "5",
                                           "--kv-dtype", "fp8k4v", "--kv-calibration", file});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
}

TEST_F(Calibrate, BudgetChoosesFormatsThatCalibratedTakes) {
  const std::string file = dir.file("cal.json");
  const ProcessResult made = calibrate({"-o", file, "--budget", "4", "--budget-tokens", "40", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const json budget = json::parse(made.out)["budget"];
  EXPECT_LE(budget["mean_bits"], 4.0);
  EXPECT_GT(budget["mean_bits"], 3.0);
  ASSERT_EQ(budget["layers"].size(), 3U);
  EXPECT_GT(budget["layers"][0]["kl_divergence_k"]["turbo2"],
            budget["layers"][0]["kl_divergence_k"]["turbo8i"]);
  EXPECT_GT(score({"--kv-dtype", "calibrated", "--kv-calibration", file})["mean_kl_divergence"], 0);
  (void)score({"--kv-dtype", "turbo3", "--kv-high-precision-layers", "auto", "--kv-calibration", file});
}

TEST_F(Calibrate, HighPrecisionLayersLowerTheDivergenceToNothing) {
  EXPECT_EQ(score({"--kv-dtype", "turbo2", "--kv-high-precision-layers", "2"}).count("mean_kl_divergence"),
            0U);
  const json one = score({"--kv-dtype", "turbo2", "--kv-high-precision-layers", "1"});
  EXPECT_LT(one["mean_kl_divergence"], score({"--kv-dtype", "turbo2"})["mean_kl_divergence"]);
}

TEST_F(Calibrate, ReferenceCanBeLeftOut) {
  EXPECT_FALSE(score({"--kv-dtype", "turbo2", "--no-reference"}).contains("mean_kl_divergence"));
  EXPECT_FALSE(score({"--kv-dtype", "bf16"}).contains("mean_kl_divergence"));
}

TEST_F(Calibrate, WrongUseIsRefusedAndLeavesNoFile) {
  const std::string file = dir.file("cal.json");
  const auto refused = [&](std::vector<std::string> arguments, int code, const std::string& what) {
    arguments.insert(arguments.end(), {"-o", file});
    const ProcessResult result = calibrate(std::move(arguments));
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_FALSE(std::filesystem::exists(file));
  };
  refused({"--budget", "2"}, 2, "turbo2");
  refused({"--budget", "0"}, 2, "--budget");
  refused({"--budget", "4", "--budget-formats", "turbo3,int5"}, 2, "'int5'");
  refused({"--budget-formats", "turbo3"}, 2, "--budget");
  dir.write("text.txt", "a");
  refused({}, 2, "needs two");
}

TEST_F(Calibrate, CalibrationOfAnotherModelOrNoneIsRefused) {
  const std::string file = dir.file("cal.json");
  ASSERT_EQ(calibrate({"-o", file}).exit_code, 0);
  const ProcessResult other =
      generate({"-p", "the", "--kv-dtype", "fp8", "--kv-calibration", file});  // the tiny model
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("of another model"));
  dir.write("broken.json", "{\"format\": \"metrale.kv_calibration\", \"version\": 1}");
  const ProcessResult broken = generate({"-p", "the", "--kv-calibration", dir.file("broken.json")});
  EXPECT_NE(broken.exit_code, 0);
  EXPECT_THAT(broken.err, AllOf(HasSubstr("broken.json"), HasSubstr("num_kv_heads")));
  const ProcessResult none = generate({"-p", "the", "--kv-dtype", "calibrated"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("--kv-calibration"));
  const ProcessResult layers = generate({"-p", "the", "--kv-high-precision-layers", "two"});
  EXPECT_EQ(layers.exit_code, 2);
  EXPECT_THAT(layers.err, HasSubstr("--kv-high-precision-layers"));
}

}  // namespace
}  // namespace metrale::test
