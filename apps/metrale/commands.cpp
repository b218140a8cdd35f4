// SPDX-License-Identifier: Apache-2.0
#include "commands.h"

#include <charconv>
#include <limits>

#include <fmt/format.h>

#include <metrale/base/checked.h>

namespace metrale::app {

namespace {

// The flag's value, its name put before what the parser says against it.
template <class T>
T value_of_flag(const char* flag, const std::string& text, T (*parse)(std::string_view)) {
  try {
    return parse(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", flag, error.what()));
  }
}

}  // namespace

void add_device_flags(CLI::App& command, DeviceFlags& flags) {
  command.add_option("--device", flags.device, "Device to run on, as `metrale devices` names it")
      ->capture_default_str();
  command
      .add_option("--threads", flags.threads,
                  "Worker threads of the CPU backend (0: one for each usable processor)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option(
      "--cpus", flags.cpus,
      "CPUs that the worker threads run on, one on each in turn, such as 0-3,8 (default: any)");
  command
      .add_option("--numa", flags.numa,
                  "Memory nodes that large CPU allocations lie on: none, interleave or bind")
      ->check(CLI::IsMember({"none", "interleave", "bind"}));
  command
      .add_option("--cuda-path", flags.cuda_path,
                  "CUDA kernels: best (those of the device), or portable (compiled by the driver)")
      ->check(CLI::IsMember({"best", "portable"}));
  command.add_option("--memory", flags.memory,
                     "Most device memory to use, such as 4G (default: what is free)");
}

runtime::BackendOptions backend_options(const DeviceFlags& flags, const runtime::Environment& environment) {
  runtime::BackendOptions options;
  options.device = flags.device;
  options.threads = flags.threads != 0 ? flags.threads : environment.threads.value_or(0);
  options.cpus = flags.cpus.empty() ? environment.cpus.value_or(CpuList{})
                                    : value_of_flag("--cpus", flags.cpus, parse_cpu_list);
  options.numa = flags.numa.empty() ? environment.numa.value_or(backends::NumaPolicy::kNone)
                                    : value_of_flag("--numa", flags.numa, backends::parse_numa_policy);
  options.cuda_path = environment.cuda_path.value_or(backends::CudaCodePath::kBest);
  if (!flags.cuda_path.empty()) {
    options.cuda_path =
        flags.cuda_path == "portable" ? backends::CudaCodePath::kPortable : backends::CudaCodePath::kBest;
  }
  options.cublaslt = environment.cublaslt;
  options.synchronize_launches = environment.debug_sync_kernels;
  if (!flags.memory.empty()) options.max_memory_bytes = parse_bytes(flags.memory, "--memory");
  if (!flags.memory.empty() && options.max_memory_bytes == 0)
    throw InvalidArgument("--memory: 0 leaves nothing");
  return options;
}

std::uint64_t parse_bytes(const std::string& text, const char* flag) {
  const auto refuse = [&] {
    return InvalidArgument(fmt::format(
        "{}: '{}' is no size; write bytes or a number with K, M, G or T (KB, MB, GB, TB: powers of 1000)",
        flag, text));
  };
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) throw refuse();
  const std::string_view unit(end, text.data() + text.size());
  constexpr std::string_view kUnits = "KMGT";
  if (unit.empty()) return value;
  const std::size_t power = kUnits.find(unit.front());
  const std::string_view kind = unit.substr(1);
  if (power == std::string_view::npos || !(kind.empty() || kind == "B" || kind == "iB")) throw refuse();
  std::uint64_t unit_bytes = 1;
  for (std::size_t i = 0; i <= power; ++i) unit_bytes *= kind == "B" ? 1000 : 1024;
  if (value > std::numeric_limits<std::uint64_t>::max() / unit_bytes) throw refuse();
  return value * unit_bytes;
}

}  // namespace metrale::app
