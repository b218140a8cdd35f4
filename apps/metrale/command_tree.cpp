// SPDX-License-Identifier: Apache-2.0
#include "command_tree.h"

#include <sstream>

namespace metrale::app {
namespace {

// The parser prints the set of accepted values into the type: "TEXT:{auto,bf16}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  std::vector<std::string> choices;
  if (open == std::string::npos || close == std::string::npos) return choices;
  std::istringstream list(type.substr(open + 1, close - open - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

std::vector<std::string> with_prefix(const char* dashes, const std::vector<std::string>& names) {
  std::vector<std::string> result;
  for (const std::string& name : names) result.push_back(dashes + name);
  return result;
}

void add_option(const CLI::Option& option, CommandEntry& entry) {
  if (option.get_positional()) {
    entry.positionals.push_back({.name = option.get_name(true, false),
                                 .description = option.get_description(),
                                 .choices = choices_of(option),
                                 .required = option.get_required()});
  }
  if (option.get_snames().empty() && option.get_lnames().empty()) return;
  const bool takes_value = option.get_items_expected_max() > 0;
  const std::string type = option.get_type_name();
  entry.options.push_back({.short_names = with_prefix("-", option.get_snames()),
                           .long_names = with_prefix("--", option.get_lnames()),
                           .description = option.get_description(),
                           .takes_value = takes_value,
                           .repeatable = option.get_expected_max() > 1,
                           .value_name = takes_value ? type.substr(0, type.find(':')) : "",
                           .choices = takes_value ? choices_of(option) : std::vector<std::string>{},
                           .default_value = takes_value ? option.get_default_str() : "",
                           .required = option.get_required() && !option.get_positional()});
}

}  // namespace

CommandEntry describe_commands(const CLI::App& app) {
  CommandEntry entry{.name = app.get_name(),
                     .description = app.get_description(),
                     .options = {},
                     .positionals = {},
                     .commands = {}};
  for (const CLI::Option* option : app.get_options()) add_option(*option, entry);
  for (const CLI::App* command : app.get_subcommands({}))
    entry.commands.push_back(describe_commands(*command));
  return entry;
}

std::vector<std::string> names_of(const OptionEntry& option) {
  std::vector<std::string> names = option.short_names;
  names.insert(names.end(), option.long_names.begin(), option.long_names.end());
  return names;
}

}  // namespace metrale::app
