// SPDX-License-Identifier: Apache-2.0
// metrale load-bench, and the flags that say how weights are read.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/program.h"

namespace metrale::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

using LoadBench = ProgramTest;
using LoadFlags = ProgramTest;

TEST_F(LoadBench, EveryPathLoadsEveryByteColdAndWarm) {
  const json report = json::parse(metrale({"load-bench", model(), "--raw", "--runs", "2", "--json"}).out);
  std::vector<std::string> names;
  for (const json& path : report["paths"]) {
    names.push_back(path["name"]);
    for (const char* state : {"cold", "warm"}) {
      const std::string wanted = path["name"] == "raw" ? "file_bytes" : "tensor_bytes";
      EXPECT_EQ(path[state]["bytes"], report[wanted]) << names.back();
      EXPECT_GT(path[state]["seconds"].get<double>(), 0) << names.back();
      EXPECT_EQ(path[state]["all_seconds"].size(), 2U) << names.back();
      EXPECT_TRUE(path[state].contains("share_of_raw")) << names.back();
      const bool reads = path["name"] != "mmap";
      EXPECT_EQ(path[state]["staging_bytes"].get<std::uint64_t>() != 0, reads) << names.back();
      EXPECT_EQ(path[state]["chunk_bytes"].get<std::uint64_t>() != 0, reads) << names.back();
    }
  }
  EXPECT_THAT(names, testing::ElementsAre("raw", "auto", "direct", "buffered", "mmap"));
}

TEST_F(LoadBench, TheTableHasARowForEachPath) {
  const ProcessResult result =
      metrale({"load-bench", model(), "--runs", "1", "--cold-only", "--paths", "direct,mmap"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("direct reads by"));
  EXPECT_THAT(result.out, HasSubstr("mmap"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("warm")));
}

TEST_F(LoadBench, BadFlagsAreRefusedBeforeAnythingIsRead) {
  const ProcessResult path = metrale({"load-bench", model(), "--paths", "direct,fast"});
  EXPECT_NE(path.exit_code, 0);
  EXPECT_THAT(path.err, HasSubstr("'fast'"));
  const ProcessResult staging = metrale({"load-bench", model(), "--staging", "1G"});
  EXPECT_NE(staging.exit_code, 0);
  EXPECT_THAT(staging.err, HasSubstr("staging"));
  EXPECT_NE(metrale({"load-bench", model() + "/nowhere"}).exit_code, 0);
}

TEST_F(LoadFlags, EveryPathGivesTheSameTokens) {
  const auto generate = [&](std::vector<std::string> flags) {
    std::vector<std::string> all{"generate", "-m", model(), "-p", "the", "-n", "8", "--temperature", "0"};
    all.insert(all.end(), flags.begin(), flags.end());
    const ProcessResult result = metrale(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string usual = generate({});
  for (const char* path : {"auto", "direct", "buffered", "mmap"}) {
    EXPECT_EQ(generate({"--load-path", path}), usual) << path;
  }
  EXPECT_EQ(generate({"--no-fast-load"}), usual);
}

TEST_F(LoadFlags, ContradictionsAndUnknownPathsAreRefused) {
  const ProcessResult both =
      metrale({"generate", "-m", model(), "-p", "the", "--no-fast-load", "--load-path", "direct"});
  EXPECT_NE(both.exit_code, 0);
  EXPECT_THAT(both.err, HasSubstr("--load-path"));
  EXPECT_NE(metrale({"generate", "-m", model(), "-p", "the", "--load-path", "quick"}).exit_code, 0);
}

}  // namespace
}  // namespace metrale::test
