// SPDX-License-Identifier: Apache-2.0
// metrale completion: scripts for three shells.
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command_tree.h"
#include "commands.h"
#include "exit_codes.h"
#include "output.h"

namespace metrale::app {
namespace {

std::string escaped(const std::string& text, std::string_view special, std::string_view with) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) result += with;
    result += c;
  }
  return result;
}

// Inside single quotes of a POSIX shell.
std::string single_quoted(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string{c};
  return result;
}

std::vector<std::string> option_words(const CommandEntry& command) {
  std::vector<std::string> words;
  for (const OptionEntry& option : command.options) {
    for (const std::string& name : names_of(option)) words.push_back(name);
  }
  return words;
}

std::vector<std::string> command_names(const CommandEntry& program) {
  std::vector<std::string> names;
  for (const CommandEntry& command : program.commands) names.push_back(command.name);
  return names;
}

// What may stand where an argument without a name is expected.
std::vector<std::string> positional_words(const CommandEntry& command) {
  std::vector<std::string> words;
  for (const PositionalEntry& positional : command.positionals) {
    words.insert(words.end(), positional.choices.begin(), positional.choices.end());
  }
  return words;
}

std::string bash_values(const CommandEntry& command) {
  std::string text;
  for (const OptionEntry& option : command.options) {
    if (!option.takes_value) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : names_of(option)) {
      patterns.push_back(fmt::format("{}:{}", command.name, name));
    }
    // Without choices nothing is offered, and bash falls back to names of files.
    text += fmt::format("    {})", fmt::join(patterns, " | "));
    if (!option.choices.empty()) {
      text += fmt::format(" COMPREPLY=($(compgen -W '{}' -- \"$current\"));", fmt::join(option.choices, " "));
    }
    text += " return ;;\n";
  }
  return text;
}

std::string zsh_text(const std::string& text) {
  return single_quoted(escaped(text, "[]:\\", "\\"));
}

std::string zsh_option(const OptionEntry& option) {
  const std::vector<std::string> names = names_of(option);
  std::string value;
  if (option.takes_value) {
    const std::string action =
        option.choices.empty() ? "_files" : fmt::format("({})", fmt::join(option.choices, " "));
    value = fmt::format(":{}:{}", option.value_name, action);
  }
  const std::string rest = fmt::format("[{}]{}'", zsh_text(option.description), single_quoted(value));
  const char* again = option.repeatable ? "*" : "";
  if (names.size() == 1) return fmt::format("'{}{}{}", again, names[0], rest);
  if (option.repeatable) return fmt::format("'*'{{{}}}'{}", fmt::join(names, ","), rest);
  return fmt::format("'({})'{{{}}}'{}", fmt::join(names, " "), fmt::join(names, ","), rest);
}

std::string zsh_arguments(const CommandEntry& command) {
  std::string text;
  for (const OptionEntry& option : command.options)
    text += fmt::format(" \\\n        {}", zsh_option(option));
  for (const PositionalEntry& positional : command.positionals) {
    const std::string action =
        positional.choices.empty() ? "_files" : fmt::format("({})", fmt::join(positional.choices, " "));
    text += fmt::format(" \\\n        '::{}:{}'", zsh_text(positional.name), action);
  }
  return text;
}

// A description between single quotes of fish, where only \ and ' are special.
std::string fish_text(const std::string& text) {
  return escaped(text, "\\'", "\\");
}

std::string fish_option(const OptionEntry& option, const std::string& condition) {
  std::string text = fmt::format("complete -c metrale -n '{}'", condition);
  for (const std::string& name : option.short_names) text += fmt::format(" -s {}", name.substr(1));
  for (const std::string& name : option.long_names) text += fmt::format(" -l {}", name.substr(2));
  if (!option.choices.empty()) {
    text += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
  } else if (option.takes_value) {
    text += " -r -F";
  }
  return text + fmt::format(" -d '{}'\n", fish_text(option.description));
}

}  // namespace

std::string bash_completion(const CommandEntry& program) {
  std::string values = bash_values(CommandEntry{"", "", program.options, {}, {}});
  std::string words;
  for (const CommandEntry& command : program.commands) {
    values += bash_values(command);
    words += fmt::format("    {}) options='{}' arguments='{}' ;;\n", command.name,
                         fmt::join(option_words(command), " "), fmt::join(positional_words(command), " "));
  }
  return fmt::format(R"(# bash completion of metrale; made by `metrale completion bash`
_metrale() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command= options arguments i
  COMPREPLY=()
  if [[ $current == = ]]; then
    current=
  elif [[ $previous == = ]]; then
    previous=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${{COMP_WORDS[i]}} in
      {}) command=${{COMP_WORDS[i]}} && break ;;
    esac
  done
  case $command:$previous in
{}  esac
  case $command in
{}    *) options='{}' arguments='{}' ;;
  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [[ -n $arguments ]]; then
    COMPREPLY=($(compgen -W "$arguments" -- "$current"))
  fi
}}
complete -o default -F _metrale metrale
)",
                     fmt::join(command_names(program), " | "), values, words,
                     fmt::join(option_words(program), " "), fmt::join(command_names(program), " "));
}

std::string zsh_completion(const CommandEntry& program) {
  std::string commands;
  std::string cases;
  for (const CommandEntry& command : program.commands) {
    commands += fmt::format("        '{}:{}'\n", command.name, zsh_text(command.description));
    cases +=
        fmt::format("      {})\n        _arguments{}\n        ;;\n", command.name, zsh_arguments(command));
  }
  return fmt::format(R"(#compdef metrale
# zsh completion of metrale; made by `metrale completion zsh`
_metrale() {{
  local context state state_descr line
  typeset -A opt_args
  _arguments -C{} \
        '1:command:->command' \
        '*::argument:->argument'
  case $state in
    command)
      local -a commands
      commands=(
{}      )
      _describe command commands
      ;;
    argument)
      case $words[1] in
{}      esac
      ;;
  esac
}}
if [[ $funcstack[1] == _metrale ]]; then
  _metrale "$@"
else
  compdef _metrale metrale
fi
)",
                     zsh_arguments(CommandEntry{"", "", program.options, {}, {}}), commands, cases);
}

std::string fish_completion(const CommandEntry& program) {
  std::string text = "# fish completion of metrale; made by `metrale completion fish`\n";
  const std::string no_command = "__fish_use_subcommand";
  for (const OptionEntry& option : program.options) text += fish_option(option, no_command);
  for (const CommandEntry& command : program.commands) {
    text += fmt::format("complete -c metrale -f -n '{}' -a {} -d '{}'\n", no_command, command.name,
                        fish_text(command.description));
  }
  for (const CommandEntry& command : program.commands) {
    const std::string condition = fmt::format("__fish_seen_subcommand_from {}", command.name);
    for (const OptionEntry& option : command.options) text += fish_option(option, condition);
    const std::vector<std::string> words = positional_words(command);
    if (!words.empty()) {
      text += fmt::format("complete -c metrale -f -n '{}' -a '{}'\n", condition, fmt::join(words, " "));
    }
  }
  return text;
}

Action add_completion(CLI::App& command, const CLI::App& program) {
  const auto shell = std::make_shared<std::string>();
  command.add_option("shell", *shell, "Shell that the script is for: bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [shell, &program] {
    const CommandEntry tree = describe_commands(program);
    Output output("");
    output.write(*shell == "bash"  ? bash_completion(tree)
                 : *shell == "zsh" ? zsh_completion(tree)
                                   : fish_completion(tree));
    return kOk;
  };
}

}  // namespace metrale::app
