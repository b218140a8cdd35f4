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
  const auto add = [&](const char* name, const char* description, const auto& add_command) {
    CLI::App* const command = app.add_subcommand(name, description);
    actions.emplace_back(command, add_command(*command));
  };
  const auto with_environment = [&](Action (*add_command)(CLI::App&, const runtime::Environment&)) {
    return [add_command, &environment](CLI::App& command) { return add_command(command, environment); };
  };
  const auto with_program = [&](Action (*add_command)(CLI::App&, const CLI::App&)) {
    return [add_command, &app](CLI::App& command) { return add_command(command, app); };
  };
  add("generate", "Continue a prompt with a model", with_environment(add_generate));
  add("batch", "Answer a file of requests into a file of results", with_environment(add_batch));
  add("score", "Say how likely a model finds a text", with_environment(add_score));
  add("calibrate", "Measure what a model's KV cache needs, and choose its formats",
      with_environment(add_calibrate));
  add("plan", "Say what a model takes of a device's memory, and what fits", add_plan);
  add("synth", "Write a model with seeded random weights", with_environment(add_synth));
  add("replay", "Run a trace of requests and say how long they took", with_environment(add_replay));
  add("trace", "Write a trace of requests from a seed", add_trace);
  add("quant-report", "Say what each format of the KV cache costs in accuracy",
      with_environment(add_quant_report));
  add("info", "Describe a model directory or a safetensors file", add_info);
  add("verify", "Check a model's weights against the format and a manifest of hashes", add_verify);
  add("convert", "Write a model again with another element type or in other files", add_convert);
  add("load-bench", "Say how fast a model's weights load by each path, beside the disk",
      with_environment(add_load_bench));
  add("devices", "List the devices that models can run on", with_environment(add_devices));
  add("tokenize", "Show a text as tokens, or tokens as a text", add_tokenize);
  add("completion", "Print a shell's completion script", with_program(add_completion));
  add("man", "Print the manual page", with_program(add_man));
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
  report_on_terminate();
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
