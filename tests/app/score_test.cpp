// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>
#include <fstream>
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

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

struct Score : ProgramTest {
  Score() {
    std::string words;
    for (int i = 0; i < 120; ++i) words += "the " + std::to_string(i * i) + " tints, ";
    dir.write("text.txt", words);
  }

  [[nodiscard]] ProcessResult score(std::vector<std::string> arguments,
                                    const ProcessOptions& options = {}) const {
    arguments.insert(arguments.begin(), {"score", model()});
    return metrale(std::move(arguments), options);
  }
  [[nodiscard]] json document(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    const ProcessResult result = score(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
  [[nodiscard]] std::string text_file() const { return dir.file("text.txt"); }

  void expect_refused(std::vector<std::string> arguments,
                      const testing::Matcher<std::string>& message) const {
    const ProcessResult result = score(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, message);
    EXPECT_EQ(result.out, "");
  }
};

TEST_F(Score, PerplexityIsTheExponentialOfTheMeanOverScoredTokens) {
  const json result = document({"--file", text_file(), "--window", "100"});
  const int tokens = result["tokens"];
  const int windows = (tokens + 99) / 100;
  EXPECT_EQ(result["windows"], windows);
  EXPECT_EQ(result["stride"], 100);
  EXPECT_EQ(result["scored_tokens"], tokens - windows);
  EXPECT_NEAR(result["perplexity"].get<double>(),
              std::exp(-result["log_likelihood"].get<double>() / (tokens - windows)), 1e-9);
}

TEST_F(Score, OverlapScoresEveryTokenButTheFirst) {
  const json result = document({"--file", text_file(), "--window", "100", "--stride", "30"});
  EXPECT_EQ(result["scored_tokens"], result["tokens"].get<int>() - 1);
}

TEST_F(Score, PerTokenLinesAddUpToTheSummary) {
  const std::vector<json> lines =
      lines_of(score({"--file", text_file(), "--window", "64", "--stride", "16", "--per-token"}).out);
  ASSERT_GT(lines.size(), 2U);
  const json& summary = lines.back();
  double sum = 0;
  int greedy = 0;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["index"], i + 1);
    sum += lines[i]["log_prob"].get<double>();
    greedy += lines[i]["is_greedy"].get<bool>() ? 1 : 0;
  }
  EXPECT_EQ(summary["scored_tokens"], lines.size() - 1);
  EXPECT_EQ(summary["greedy_tokens"], greedy);
  EXPECT_NEAR(summary["log_likelihood"].get<double>(), sum, 1e-9);
  EXPECT_EQ(lines[0]["text"], "e");
}

TEST_F(Score, LimitsAndThreadsDoNotChangeTheFigures) {
  const json reference = document({"--file", text_file(), "--window", "100", "--max-windows", "2"});
  EXPECT_EQ(reference["windows"], 2);
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--max-batch-tokens", "9"}, {"--block-size", "64"}, {"--threads", "3"}}) {
    std::vector<std::string> arguments{"--file", text_file(), "--window", "100", "--max-windows", "2"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(document(arguments)["log_likelihood"], reference["log_likelihood"]) << flags.front();
  }
}

TEST_F(Score, StandardInputOutputFileAndTextFormHaveTheSameFigure) {
  dir.write("short.txt", "some short text");
  const std::string text = score({"--file", dir.file("short.txt")}).out;
  EXPECT_THAT(text, HasSubstr("perplexity"));
  EXPECT_EQ(score({"--file", "-"}, {.input = "some short text"}).out, text);
  EXPECT_EQ(score({"--file", dir.file("short.txt"), "-o", dir.file("out")}).out, "");
  std::ostringstream written;
  written << std::ifstream(dir.file("out")).rdbuf();
  EXPECT_EQ(written.str(), text);
}

TEST_F(Score, ContinuationIsScoredGivenThePrompt) {
  const std::vector<json> pair =
      lines_of(score({"--prompt", "one two", "--continuation", " three", "--per-token"}).out);
  dir.write("whole.txt", "one two three");
  const std::vector<json> whole = lines_of(score({"--file", dir.file("whole.txt"), "--per-token"}).out);
  const json& summary = pair.back();
  const std::size_t count = summary["scored_tokens"];
  ASSERT_EQ(pair.size(), count + 1);
  EXPECT_EQ(summary["prompt_tokens"].get<std::size_t>() + count, summary["tokens"]);
  EXPECT_FALSE(summary["is_greedy"]);
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(pair[i], whole[whole.size() - 1 - count + i]);
}

TEST_F(Score, SpaceAtTheEndOfThePromptBelongsToTheContinuation) {
  EXPECT_EQ(document({"--prompt", "one two ", "--continuation", "three"}),
            document({"--prompt", "one two", "--continuation", " three"}));
}

TEST_F(Score, GreedyContinuationIsSaidToBeGreedy) {
  int tried = 0;
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    const std::string prompt(3, letter);
    const json next = json::parse(generate({"-p", prompt, "-n", "1", "--json", "--ignore-eos"}).out);
    const std::string text = next["text"];
    const ProcessResult scored = score({"--prompt", prompt, "--continuation", text, "--per-token"});
    const std::vector<json> lines = lines_of(scored.out);
    // Where the text is no token by itself, another one is scored.
    if (lines.size() != 2 || lines[0]["token"] != next["tokens"][0]) continue;
    EXPECT_TRUE(lines[1]["is_greedy"]) << prompt;
    ++tried;
  }
  EXPECT_GT(tried, 0);
}

TEST_F(Score, EmptyPromptIsTheBosToken) {
  const json result = document({"--prompt", "", "--continuation", "word"});
  EXPECT_EQ(result["prompt_tokens"], 1);
}

TEST_F(Score, BadInputIsRefusedByName) {
  dir.write("empty.txt", "");
  dir.write("one.txt", "a");
  expect_refused({"--file", dir.file("empty.txt")}, AllOf(HasSubstr("empty.txt"), HasSubstr("is empty")));
  expect_refused({"--file", dir.file("one.txt")}, AllOf(HasSubstr("one.txt"), HasSubstr("1 tokens")));
  expect_refused({"--file", text_file(), "--window", "100", "--stride", "101"}, HasSubstr("stride 101"));
  expect_refused({"--file", text_file(), "--window", "513"}, HasSubstr("the 512 positions of the model"));
  expect_refused({"--file", text_file(), "--window", "1"}, HasSubstr("--window"));
  expect_refused({"--file", text_file(), "--stride", "0"}, HasSubstr("--stride"));
  expect_refused({}, HasSubstr("--file"));
  expect_refused({"--file", text_file(), "--prompt", "x"}, HasSubstr("--file"));
  expect_refused({"--prompt", "x"}, HasSubstr("go together"));
  expect_refused({"--prompt", "x", "--continuation", ""}, HasSubstr("--continuation is empty"));
  expect_refused({"--prompt", "x", "--continuation", "y", "--stride", "4"}, HasSubstr("go with --file"));
  expect_refused({"--prompt", "x", "--continuation", std::string(5000, '7')},
                 HasSubstr("the model takes 512"));
  EXPECT_EQ(score({"--file", dir.file("absent.txt")}).exit_code, 4);
}

}  // namespace
}  // namespace metrale::test
