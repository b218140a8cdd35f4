// SPDX-License-Identifier: Apache-2.0
// Places and limits that an operator meets: full and read-only disks, little locked or shared memory. Mounts
// are made in a mount namespace of the test's own; where that is not allowed, those tests are skipped.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/program.h"

namespace metrale::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kUnshare = "/usr/bin/unshare";

struct Robustness : ProgramTest {
  Robustness() {
    std::filesystem::create_directory(place());
    std::string words;
    for (int i = 0; i < 200; ++i) words += "word " + std::to_string(i) + " ";
    dir.write("text.txt", words);
  }

  [[nodiscard]] std::string place() const { return dir.file("place"); }

  // `setup` runs first, then the program; `$PLACE` and `$MODEL` are ours.
  [[nodiscard]] ProcessResult shell(std::vector<std::string> prefix, const std::string& setup,
                                    const std::vector<std::string>& arguments) const {
    prefix.insert(prefix.end(),
                  {"/bin/sh", "-c", "{ " + setup + "; } >&2 && exec \"$@\"", "sh", METRALE_PROGRAM});
    prefix.insert(prefix.end(), arguments.begin(), arguments.end());
    return run_process(prefix, {.environment = {"PLACE=" + place(), "MODEL=" + model()}});
  }
  [[nodiscard]] ProcessResult limited(const std::string& limit,
                                      const std::vector<std::string>& arguments) const {
    return shell({}, limit, arguments);
  }
  [[nodiscard]] static bool can_mount() {
    if (!std::filesystem::exists(kUnshare)) return false;
    return run_process({kUnshare, "-Ur", "-m", "/bin/mount", "-t", "tmpfs", "tmpfs", "/mnt"}).exit_code == 0;
  }
  [[nodiscard]] ProcessResult mounted(const std::string& setup,
                                      const std::vector<std::string>& arguments) const {
    return shell({kUnshare, "-Ur", "-m"}, setup, arguments);
  }
  // The same, and then what lies in the place, on standard output; the exit code is the program's.
  [[nodiscard]] ProcessResult mounted_then_list(const std::string& setup,
                                                const std::vector<std::string>& arguments) const {
    std::vector<std::string> command{
        kUnshare,  "-Ur",          "-m",
        "/bin/sh", "-c",           "{ " + setup + R"(; } >&2 && "$@"; code=$?; ls -A "$PLACE"; exit $code)",
        "sh",      METRALE_PROGRAM};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_process(command, {.environment = {"PLACE=" + place(), "MODEL=" + model()}});
  }

  const std::string small_disk = "mount -t tmpfs -o size=16k tmpfs \"$PLACE\"";
  const std::string read_only_disk = "mount -t tmpfs -o ro tmpfs \"$PLACE\"";
  const std::vector<std::string> generation{"generate", "-m", model(), "-p", "x", "-n", "4", "--ignore-eos"};
};

void expect_io_error(const ProcessResult& result, const testing::Matcher<std::string>& message) {
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, message);
  EXPECT_EQ(result.out, "") << "something was left behind";
}

TEST_F(Robustness, FullDiskIsReportedAndNothingIsLeft) {
  if (!can_mount()) GTEST_SKIP() << "no mount namespace";
  expect_io_error(mounted_then_list(small_disk, {"score", model(), "--file", dir.file("text.txt"),
                                                 "--per-token", "-o", place() + "/scores"}),
                  AllOf(HasSubstr("place/scores"), HasSubstr("No space left")));
  expect_io_error(mounted_then_list(small_disk, {"synth", place()}),
                  AllOf(HasSubstr("place"), HasSubstr("No space left"), HasSubstr("are free")));
}

TEST_F(Robustness, FileBeyondTheSizeLimitIsReportedAndNothingIsLeft) {
  const ProcessResult result = limited("ulimit -f 64", {"synth", place()});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("model.safetensors"), HasSubstr("File too large")));
  EXPECT_TRUE(std::filesystem::is_empty(place()));
}

TEST_F(Robustness, ReadOnlyDiskForOutputsIsReported) {
  if (!can_mount()) GTEST_SKIP() << "no mount namespace";
  std::vector<std::string> to_file = generation;
  to_file.insert(to_file.end(), {"-o", place() + "/out"});
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           to_file,
           {"score", model(), "--file", dir.file("text.txt"), "-o", place() + "/out"},
           {"synth", place()},
           {"synth", place() + "/new"}}) {
    expect_io_error(mounted(read_only_disk, arguments), AllOf(HasSubstr("place"), HasSubstr("Read-only")));
  }
}

TEST_F(Robustness, ModelsCanBeReadFromAReadOnlyDisk) {
  if (!can_mount()) GTEST_SKIP() << "no mount namespace";
  const std::string setup =
      "mount --bind \"$MODEL\" \"$MODEL\" && mount -o remount,ro,bind \"$MODEL\" && mount -t tmpfs -o ro "
      "tmpfs /var/tmp "
      "&& cd \"$MODEL\"";
  const ProcessResult result = mounted(setup, generation);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, metrale(generation).out);
}

TEST_F(Robustness, BatchThatRanOutOfMemoryIsResumedWithFewerLinesInFlight) {
  if (limited("ulimit -v 1000000", {"--version"}).exit_code != 0) {
    GTEST_SKIP() << "a program that needs more address space";
  }
  const auto input = [&](const std::string& name, int lines, int n) {
    std::string text;
    for (int i = 0; i < lines; ++i) {
      text += R"({"tokens": [1], "max_tokens": 1, "ignore_eos": true, "n": )" + std::to_string(n) + "}\n";
    }
    return dir.write(name, text);
  };
  const auto batch = [&](const std::string& from, const std::string& to, const std::string& in_flight) {
    return std::vector<std::string>{"batch",           "-m",      model(),     from, "-o",    dir.file(to),
                                    "--max-in-flight", in_flight, "--threads", "1",  "--json"};
  };
  // The least with which the program answers one line: many answers do not fit what is left of it.
  const std::string one = input("one.jsonl", 1, 1);
  std::string limit;
  for (int kib = 200'000; limit.empty() && kib < 2'000'000; kib += 8'000) {
    const std::string asked = "ulimit -v " + std::to_string(kib);
    if (limited(asked, batch(one, "one" + std::to_string(kib), "1")).exit_code == 0) limit = asked;
  }
  ASSERT_FALSE(limit.empty());
  constexpr int kLines = 400;
  const std::string many = input("many.jsonl", kLines, 1024);

  const ProcessResult run = limited(limit, batch(many, "out", "1000000"));

  // It is the lines' own failure, or ends the run, as it comes.
  if (run.exit_code == 0) {
    EXPECT_GT(nlohmann::json::parse(run.out)["failed"], 0);
  } else {
    EXPECT_EQ(run.exit_code, 5);
    EXPECT_THAT(run.err, HasSubstr("not enough host memory: lower what the command has of --max-in-flight"));
  }
  std::vector<std::string> rest = batch(many, "out", "8");
  rest.emplace_back("--resume");
  const ProcessResult again = limited(limit, rest);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out)["failed"], 0);
  std::ifstream lines(dir.file("out"));
  std::set<std::string> answered;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json result = nlohmann::json::parse(line);
    EXPECT_TRUE(result["error"].is_null()) << line.substr(0, 200);
    answered.insert(result["custom_id"]);
  }
  EXPECT_EQ(answered.size(), std::size_t{kLines});
}

TEST_F(Robustness, NoMemoryIsReportedWithAdvice) {
  const std::string limit = "ulimit -v 400000";
  if (limited(limit, {"--version"}).exit_code != 0) GTEST_SKIP() << "a program that needs more address space";
  dir.write("large.txt", "");
  std::filesystem::resize_file(dir.file("large.txt"), 250'000'000);
  const ProcessResult result = limited(limit, {"tokenize", model(), "-f", dir.file("large.txt")});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, AllOf(HasSubstr("not enough host memory"), HasSubstr("--max-batch-size")));
}

TEST_F(Robustness, NoLockedMemoryIsNeeded) {
  const ProcessResult result = limited("ulimit -l 0", generation);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, metrale(generation).out);
  EXPECT_EQ(result.err, "");
}

TEST_F(Robustness, NoSharedMemoryIsNeeded) {
  if (!can_mount() || !std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no mount namespace";
  const ProcessResult result = mounted("mount -t tmpfs -o size=4k tmpfs /dev/shm", generation);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, metrale(generation).out);
}

}  // namespace
}  // namespace metrale::test
