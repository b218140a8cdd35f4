// SPDX-License-Identifier: Apache-2.0
// Completion scripts and the manual page have what the program has.
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/program.h"

namespace metrale::test {
namespace {

using testing::HasSubstr;

// Names that begin a line of a help text: commands, or options with their dashes.
std::set<std::string> matches(const std::string& help, const char* pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator match(help.begin(), help.end(), regex), end; match != end; ++match) {
    found.insert((*match)[1]);
  }
  return found;
}

std::set<std::string> commands() {
  const std::string help = metrale({"--help"}).out;
  return matches(help.substr(help.find("Subcommands:")), "\n  ([a-z]+) ");
}

std::set<std::string> long_options(const std::string& command) {
  std::set<std::string> options;
  const std::string help = metrale({command, "--help"}).out;
  return matches(help, "\n  (?:-[a-z],)?(--[a-z][a-z-]*)");
}

// The part of a text from one line that holds `begin` to the next that holds `end`.
std::string part(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  if (from == std::string::npos) return "";
  return text.substr(from, text.find(end, from + begin.size()) - from);
}

std::string first_of(std::initializer_list<const char*> paths) {
  for (const char* path : paths) {
    if (std::filesystem::exists(path)) return path;
  }
  return "";
}

struct Completion : testing::Test {
  // What bash would offer for the last of these words.
  [[nodiscard]] std::string bash_offers(const std::string& words) const {
    const std::string script = dir.write("metrale.bash", metrale({"completion", "bash"}).out);
    return run_process({"/bin/bash", "-c",
                        "source " + script + "; COMP_WORDS=(" + words +
                            "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _metrale; echo \"${COMPREPLY[*]}\""})
        .out;
  }
  TempDir dir;
};

TEST_F(Completion, EveryOptionOfEveryCommandIsInEveryScript) {
  const std::string bash = metrale({"completion", "bash"}).out;
  const std::string zsh = metrale({"completion", "zsh"}).out;
  const std::string fish = metrale({"completion", "fish"}).out;
  ASSERT_GE(commands().size(), 8U);
  for (const std::string& command : commands()) {
    EXPECT_THAT(fish, HasSubstr(" -a " + command + " -d ")) << command;
    EXPECT_THAT(zsh, HasSubstr("'" + command + ":")) << command;
    const std::string in_bash = part(bash, "\n    " + command + ") options='", ";;");
    const std::string in_zsh = part(zsh, "\n      " + command + ")\n", ";;");
    ASSERT_FALSE(long_options(command).empty());
    for (const std::string& option : long_options(command)) {
      EXPECT_TRUE(std::regex_search(in_bash, std::regex(option + "[ ']"))) << command << " " << option;
      EXPECT_TRUE(std::regex_search(in_zsh, std::regex(option + "[,'}\\[]"))) << command << " " << option;
      EXPECT_TRUE(std::regex_search(
          fish, std::regex("seen_subcommand_from " + command + "'[^\n]* -l " + option.substr(2) + " ")))
          << command << " " << option;
    }
  }
}

TEST_F(Completion, EveryOptionOfEveryCommandIsInTheManualPage) {
  const std::string page = std::regex_replace(metrale({"man"}).out, std::regex("\\\\-"), "-");
  for (const std::string& command : commands()) {
    const std::string section = part(page, ".SS metrale " + command + "\n", "\n.S");
    for (const std::string& option : long_options(command)) {
      EXPECT_THAT(section, HasSubstr("\\fB" + option + "\\fR")) << command;
    }
  }
  EXPECT_THAT(part(page, ".SS metrale generate", "\n.S"), HasSubstr("auto|bf16|fp32"));
}

TEST_F(Completion, BashOffersCommandsOptionsAndValues) {
  if (!std::filesystem::exists("/bin/bash")) GTEST_SKIP() << "no bash";
  EXPECT_EQ(bash_offers("metrale ge"), "generate\n");
  EXPECT_EQ(bash_offers("metrale generate --max-b"), "--max-batch-size --max-batch-tokens\n");
  EXPECT_EQ(bash_offers("metrale plan --max-b"), "--max-batch-size --max-batch-tokens\n");
  EXPECT_EQ(bash_offers("metrale info --max-b"), "\n");
  EXPECT_EQ(bash_offers("metrale generate --dtype ''"), "auto bf16 fp32\n");
  EXPECT_EQ(bash_offers("metrale generate --dtype = b"), "bf16\n");
  EXPECT_EQ(bash_offers("metrale synth --dtype f"), "f32 f16\n");
  EXPECT_EQ(bash_offers("metrale completion z"), "zsh\n");
  EXPECT_EQ(bash_offers("metrale generate --model c"), "\n");
}

TEST_F(Completion, ShellsThatAreHereParseTheirScripts) {
  const std::vector<std::pair<std::string, std::string>> shells{
      {"bash", first_of({"/bin/bash"})},
      {"zsh", first_of({"/bin/zsh", "/usr/bin/zsh"})},
      {"fish", first_of({"/usr/bin/fish"})},
  };
  for (const auto& [name, program] : shells) {
    if (program.empty()) continue;
    const std::string script = dir.write(name, metrale({"completion", name}).out);
    const ProcessResult result = run_process({program, "-n", script});
    EXPECT_EQ(result.exit_code, 0) << name;
    EXPECT_EQ(result.err, "") << name;
  }
}

TEST_F(Completion, ManualPageFormatsWithoutWarnings) {
  const std::string groff = first_of({"/usr/bin/groff"});
  if (groff.empty()) GTEST_SKIP() << "no groff";
  const std::string page = dir.write("metrale.1", metrale({"man"}).out);
  const ProcessResult result = run_process({groff, "-man", "-ww", "-z", page});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

TEST_F(Completion, UnknownShellIsRefused) {
  EXPECT_EQ(metrale({"completion", "csh"}).exit_code, 2);
  EXPECT_EQ(metrale({"completion"}).exit_code, 2);
}

}  // namespace
}  // namespace metrale::test
