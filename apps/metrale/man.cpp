// SPDX-License-Identifier: Apache-2.0
// metrale man: the manual page, from the parser's definitions.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command_tree.h"
#include "commands.h"
#include "exit_codes.h"
#include "output.h"

namespace metrale::app {
namespace {

constexpr const char* kTail = R"(.SH ENVIRONMENT
An option wins over its variable.
.TP
.B METRALE_CPU_ISA
Hides the instructions above it: avx2, avx512 or avx512bf16.
.TP
.B METRALE_THREADS
Worker threads of the CPU backend.
.TP
.B METRALE_CPUS
The CPUs that they run on, as in 0-3,8.
.TP
.B METRALE_NUMA
Where large CPU allocations lie: none, interleave or bind.
.TP
.B METRALE_LOG
What the library logs on standard error: trace, debug, info, warn, error or off.
.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
Internal error.
.TP
.B 2
A bad flag or value, or an input that does not fit the limits.
.TP
.B 3
A model or input file that is not what its format says.
.TP
.B 4
A file that cannot be read or written.
.TP
.B 5
Not enough memory.
.TP
.B 6
A valid model or setting that this build does not have.
.TP
.B 7
The device failed.
.TP
.B 130
Interrupted.
)";

// Text of a line: dashes stay dashes, and no line begins with a control character.
std::string roff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '-') {
      result += "\\-";
    } else if (c == '\\') {
      result += "\\e";
    } else if ((c == '.' || c == '\'') && result.empty()) {
      result += std::string("\\&") + c;
    } else {
      result += c;
    }
  }
  return result;
}

std::string sentence(const std::string& text) {
  return text.empty() || text.ends_with('.') ? roff(text) : roff(text) + ".";
}

std::string option_text(const OptionEntry& option) {
  std::vector<std::string> names;
  for (const std::string& name : names_of(option)) names.push_back(fmt::format("\\fB{}\\fR", roff(name)));
  std::string value;
  if (!option.choices.empty()) {
    value = fmt::format(" \\fI{}\\fR", roff(fmt::format("{}", fmt::join(option.choices, "|"))));
  } else if (option.takes_value) {
    value = fmt::format(" \\fI{}\\fR", roff(option.value_name));
  }
  std::string text =
      fmt::format(".TP\n{}{}\n{}", fmt::join(names, ", "), value, sentence(option.description));
  if (option.required) text += "\nRequired.";
  if (!option.default_value.empty()) text += fmt::format("\nDefault: {}.", roff(option.default_value));
  return text + "\n";
}

std::string usage(const CommandEntry& command) {
  std::string text = fmt::format(".B metrale {}\n", command.name);
  for (const PositionalEntry& positional : command.positionals) {
    const std::string name =
        positional.choices.empty() ? positional.name : fmt::format("{}", fmt::join(positional.choices, "|"));
    text +=
        positional.required ? fmt::format(".I {}\n", roff(name)) : fmt::format("[\\fI{}\\fR]\n", roff(name));
  }
  return text + "[options]\n";
}

std::string command_text(const CommandEntry& command) {
  std::string text = fmt::format(".SS metrale {}\n{}\n", command.name, sentence(command.description));
  for (const PositionalEntry& positional : command.positionals) {
    text += fmt::format(".TP\n\\fI{}\\fR\n{}\n", roff(positional.name), sentence(positional.description));
  }
  for (const OptionEntry& option : command.options) text += option_text(option);
  return text;
}

}  // namespace

std::string man_page(const CommandEntry& program, const std::string& version) {
  std::string text = fmt::format(".TH METRALE 1 \"\" \"metrale {}\" \"User Commands\"\n", version);
  text += fmt::format(".SH NAME\nmetrale \\- {}\n.SH SYNOPSIS\n", roff(program.description));
  std::string separator;
  for (const CommandEntry& command : program.commands) {
    text += separator + usage(command);
    separator = ".br\n";
  }
  text += fmt::format(
      ".SH DESCRIPTION\n{}.\nResults go to standard output, everything else to standard error.\n.SH "
      "OPTIONS\n",
      roff(program.description));
  for (const OptionEntry& option : program.options) text += option_text(option);
  text += ".SH COMMANDS\n";
  for (const CommandEntry& command : program.commands) text += command_text(command);
  return text + kTail;
}

Action add_man(CLI::App&, const CLI::App& program) {
  return [&program] {
    Output output("");
    output.write(man_page(describe_commands(program), METRALE_VERSION));
    return kOk;
  };
}

}  // namespace metrale::app
