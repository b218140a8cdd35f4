// SPDX-License-Identifier: Apache-2.0
#include "commands.h"

#include <charconv>

#include <fmt/format.h>

#include <metrale/base/checked.h>

namespace metrale::app {

void add_device_flags(CLI::App& command, DeviceFlags& flags) {
  command.add_option("--device", flags.device, "Device to run on, as `metrale devices` names it")
      ->capture_default_str();
  command
      .add_option("--threads", flags.threads,
                  "Worker threads of the CPU backend (0: one for each usable processor)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--memory", flags.memory,
                     "Most device memory to use, such as 4G (default: what is free)");
}

runtime::BackendOptions backend_options(const DeviceFlags& flags, const runtime::Environment& environment) {
  runtime::BackendOptions options;
  options.device = flags.device;
  options.threads = flags.threads != 0 ? flags.threads : environment.threads.value_or(0);
  if (!flags.memory.empty()) options.max_memory_bytes = parse_bytes(flags.memory, "--memory");
  if (!flags.memory.empty() && options.max_memory_bytes == 0)
    throw InvalidArgument("--memory: 0 leaves nothing");
  return options;
}

std::uint64_t parse_bytes(const std::string& text, const char* flag) {
  const auto refuse = [&] {
    return InvalidArgument(
        fmt::format("{}: '{}' is no size; write bytes or a number with K, M, G or T", flag, text));
  };
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) throw refuse();
  const std::string_view unit(end, text.data() + text.size());
  constexpr std::string_view kUnits = "KMGT";
  if (unit.empty()) return value;
  const std::size_t power = kUnits.find(unit.front());
  if (unit.size() != 1 || power == std::string_view::npos) throw refuse();
  return checked_mul(value, std::uint64_t{1} << (10 * (power + 1)));
}

}  // namespace metrale::app
