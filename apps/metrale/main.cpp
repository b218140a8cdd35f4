// SPDX-License-Identifier: Apache-2.0
// metrale: the command-line program. Commands live in a file each; this one parses, dispatches and maps
// errors.
#include <algorithm>
#include <cerrno>
#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <metrale/base/error.h>

#include "commands.h"
#include "exit_codes.h"
#include "interrupt.h"

namespace metrale::app {
namespace {

bool has_command(const CLI::App& app, const std::string& name) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  return std::any_of(commands.begin(), commands.end(),
                     [&](const CLI::App* each) { return each->get_name() == name; });
}

int run(int argc, char** argv) {
  const runtime::Environment environment = runtime::read_environment();
  runtime::apply(environment);
  watch_interrupts();

  CLI::App app("The memory-and-storage runtime under an LLM inference engine", "metrale");
  app.set_version_flag("--version", "metrale " METRALE_VERSION);
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, Action>> actions;
  CLI::App* generate = app.add_subcommand("generate", "Continue a prompt with a model");
  actions.emplace_back(generate, add_generate(*generate, environment));
  CLI::App* score = app.add_subcommand("score", "Say how likely a model finds a text");
  actions.emplace_back(score, add_score(*score, environment));
  CLI::App* plan = app.add_subcommand("plan", "Say what a model takes of a device's memory, and what fits");
  actions.emplace_back(plan, add_plan(*plan));
  CLI::App* synth = app.add_subcommand("synth", "Write a model with seeded random weights");
  actions.emplace_back(synth, add_synth(*synth, environment));
  CLI::App* info = app.add_subcommand("info", "Describe a model directory or a safetensors file");
  actions.emplace_back(info, add_info(*info));
  CLI::App* devices = app.add_subcommand("devices", "List the devices that models can run on");
  actions.emplace_back(devices, add_devices(*devices, environment));
  CLI::App* tokenize = app.add_subcommand("tokenize", "Show a text as tokens, or tokens as a text");
  actions.emplace_back(tokenize, add_tokenize(*tokenize));
  CLI::App* completion = app.add_subcommand("completion", "Print a shell's completion script");
  actions.emplace_back(completion, add_completion(*completion, app));
  CLI::App* man = app.add_subcommand("man", "Print the manual page");
  actions.emplace_back(man, add_man(*man, app));
  if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1])) {
    throw InvalidArgument(fmt::format("there is no command '{}'; metrale --help lists them", argv[1]));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool wanted = app.exit(error) == 0;  // help or version, on standard output
    if (!std::cout.flush()) throw IoError("cannot write", "standard output", errno);
    return wanted ? kOk : kUsage;
  }
  for (const auto& [command, action] : actions) {
    if (command->parsed()) return action();
  }
  return kUsage;
}

}  // namespace

int run_reporting_errors(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return report_error(error);
  }
}

}  // namespace metrale::app

int main(int argc, char** argv) {
  return metrale::app::run_reporting_errors(argc, argv);
}
