// SPDX-License-Identifier: Apache-2.0
// The program's commands and options as data, read from the parser's own definitions: what completion scripts
// and the man page are made from.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace metrale::app {

struct OptionEntry {
  std::vector<std::string> short_names;  // "-m"
  std::vector<std::string> long_names;   // "--model"
  std::string description;
  bool takes_value = false;
  bool repeatable = false;
  std::string value_name;            // "TEXT", "UINT"; of options that take a value
  std::vector<std::string> choices;  // where only these are accepted
  std::string default_value;         // empty where there is none
  bool required = false;
};

struct PositionalEntry {
  std::string name;
  std::string description;
  std::vector<std::string> choices;
  bool required = false;
};

struct CommandEntry {
  std::string name;
  std::string description;
  std::vector<OptionEntry> options;
  std::vector<PositionalEntry> positionals;
  std::vector<CommandEntry> commands;
};

[[nodiscard]] CommandEntry describe_commands(const CLI::App& app);

// Short names first, each with its dashes.
[[nodiscard]] std::vector<std::string> names_of(const OptionEntry& option);

// The texts, newline at the end.
[[nodiscard]] std::string bash_completion(const CommandEntry& program);
[[nodiscard]] std::string zsh_completion(const CommandEntry& program);
[[nodiscard]] std::string fish_completion(const CommandEntry& program);
// troff with the man macros.
[[nodiscard]] std::string man_page(const CommandEntry& program, const std::string& version);

}  // namespace metrale::app
