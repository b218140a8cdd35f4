// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/program.h"

namespace metrale::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

struct VerifyCommand : ProgramTest {
  [[nodiscard]] std::string weights() const { return model() + "/model.safetensors"; }
  [[nodiscard]] std::string manifest() const { return model() + "/metrale.manifest.json"; }
  // Changes a byte of the tensor.
  void damage(const std::string& tensor) const {
    const json info = json::parse(metrale({"info", model(), "--json", "--tensors"}).out);
    for (const json& each : info["tensors"]) {
      if (each["name"] != tensor) continue;
      std::fstream file(weights(), std::ios::in | std::ios::out | std::ios::binary);
      const auto at = each["offset"].get<std::streamoff>() + 3;
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 0x40));
    }
  }
};

TEST_F(VerifyCommand, ManifestIsWrittenAndComparedWith) {
  EXPECT_THAT(metrale({"verify", model()}).out, AllOf(HasSubstr("ok"), HasSubstr("no manifest")));
  EXPECT_FALSE(std::filesystem::exists(manifest()));
  const ProcessResult written = metrale({"verify", model(), "--write-manifest"});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_THAT(written.out, HasSubstr("wrote " + manifest()));
  EXPECT_EQ(metrale({"verify", model()}).exit_code, 0);
  EXPECT_EQ(generate({"-p", "x", "-n", "1"}).err, "");
}

TEST_F(VerifyCommand, DamagedTensorIsNamedAndTheExitCodeSaysSo) {
  ASSERT_EQ(metrale({"verify", model(), "--write-manifest"}).exit_code, 0);
  damage("model.layers.1.mlp.up_proj.weight");
  const ProcessResult text = metrale({"verify", model()});
  EXPECT_EQ(text.exit_code, 3);
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("model.safetensors: tensor 'model.layers.1.mlp.up_proj.weight' at byte "),
                    HasSubstr("differ")));
  const ProcessResult result = metrale({"verify", model(), "--json"});
  EXPECT_EQ(result.exit_code, 3);
  const json report = json::parse(result.out);
  EXPECT_FALSE(report["ok"]);
  EXPECT_EQ(report["manifest"], manifest());
  ASSERT_EQ(report["problems"].size(), 1U);
  EXPECT_EQ(report["problems"][0]["kind"], "difference");
  EXPECT_EQ(report["problems"][0]["file"], weights());
  EXPECT_EQ(report["problems"][0]["tensor"], "model.layers.1.mlp.up_proj.weight");
  EXPECT_GT(report["problems"][0]["offset"], 0);
  EXPECT_EQ(report["bytes_read"], report["bytes"]);
  EXPECT_EQ(metrale({"verify", model(), "--headers-only"}).exit_code, 0);
}

TEST_F(VerifyCommand, BrokenFileFailsWithoutAManifestAndGetsNone) {
  std::ofstream(weights(), std::ios::app) << "more";
  const ProcessResult result = metrale({"verify", model(), "--write-manifest"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("4 bytes follow the last tensor"));
  EXPECT_FALSE(std::filesystem::exists(manifest()));
}

TEST_F(VerifyCommand, MissingShardIsAnIoFailure) {
  dir.write("model/model.safetensors.index.json", R"({"weight_map":{"a":"gone.safetensors"}})");
  const ProcessResult result = metrale({"verify", model(), "--json"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(json::parse(result.out)["problems"][0]["kind"], "io");
}

TEST_F(VerifyCommand, ManifestLiesWhereTheFlagSays) {
  const std::string file = dir.file("elsewhere.json");
  ASSERT_EQ(metrale({"verify", model(), "--write-manifest", file}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(manifest()));
  EXPECT_THAT(metrale({"verify", model(), "--manifest", file}).out, HasSubstr("compared with " + file));
  ASSERT_EQ(metrale({"verify", weights(), "--write-manifest"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(weights() + ".manifest.json"));
  EXPECT_EQ(metrale({"verify", weights()}).exit_code, 0);
}

TEST_F(VerifyCommand, ManifestThatIsThereIsKeptWithoutForce) {
  dir.write("model/metrale.manifest.json", "{}");
  const ProcessResult refused = metrale({"verify", model(), "--write-manifest"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(manifest()), HasSubstr("--force")));
  EXPECT_EQ(read_file(manifest()), "{}");
  EXPECT_EQ(metrale({"verify", model(), "--write-manifest", "--force"}).exit_code, 0);
  EXPECT_EQ(metrale({"verify", model()}).exit_code, 0);
}

TEST_F(VerifyCommand, BadManifestsAndFlagsAreRefused) {
  dir.write("model/metrale.manifest.json", "{\"format\": \"other\"}");
  const ProcessResult bad = metrale({"verify", model()});
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_THAT(bad.err, AllOf(HasSubstr("metrale.manifest.json"), HasSubstr("no weight manifest")));
  dir.write("model/metrale.manifest.json",
            R"({"format":"metrale weight manifest","version":9,"hash":"xxh3-64","files":[]})");
  EXPECT_EQ(metrale({"verify", model()}).exit_code, 6);
  EXPECT_EQ(metrale({"verify", model(), "--manifest", dir.file("absent")}).exit_code, 4);
  EXPECT_EQ(metrale({"verify", model(), "--manifest", "x", "--write-manifest", "y"}).exit_code, 2);
  EXPECT_EQ(metrale({"verify", model(), "--headers-only", "--write-manifest", "y"}).exit_code, 2);
  EXPECT_EQ(metrale({"verify"}).exit_code, 2);
  EXPECT_EQ(metrale({"verify", dir.file("absent")}).exit_code, 4);
  // A link to nowhere is not the same as no manifest.
  std::filesystem::remove(manifest());
  std::filesystem::create_symlink("nowhere", manifest());
  EXPECT_EQ(metrale({"verify", model()}).exit_code, 4);
}

TEST_F(VerifyCommand, InterruptEndsIt) {
  // Zeros that take no room and some time to read.
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[2147483648],"data_offsets":[0,2147483648]}}      )";
  std::string prefix(8, '\0');
  prefix[0] = static_cast<char>(header.size());
  const std::string file = dir.write("zeros.safetensors", prefix + header);
  std::filesystem::resize_file(file, prefix.size() + header.size() + (std::uint64_t{1} << 31));
  const std::string script = METRALE_PROGRAM " verify " + file + " --write-manifest & " +
                             "while kill -INT $! 2>/dev/null; do sleep 0.02; done; wait $!";
  EXPECT_EQ(run_process({"/bin/bash", "-c", script}).exit_code, 130);
  EXPECT_FALSE(std::filesystem::exists(file + ".manifest.json"));
}

}  // namespace
}  // namespace metrale::test
