// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/runtime/environment.h>

namespace metrale::runtime {
namespace {

constexpr unsigned kMaxThreads = 1024;

std::optional<std::string> value_of(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

// The variable's value, its name put before what the parser says against it.
template <class T>
std::optional<T> parsed(const char* variable, T (*parse)(std::string_view)) {
  const auto text = value_of(variable);
  if (!text) return std::nullopt;
  try {
    return parse(*text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", variable, error.what()));
  }
}

unsigned parse_threads(const std::string& text) {
  unsigned threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc{} || end != text.data() + text.size() || threads == 0 || threads > kMaxThreads) {
    throw InvalidArgument(
        fmt::format("METRALE_THREADS is '{}'; a number from 1 to {} is accepted", text, kMaxThreads));
  }
  return threads;
}

spdlog::level::level_enum parse_level(const std::string& name) {
  using spdlog::level::level_enum;
  constexpr std::pair<std::string_view, level_enum> kLevels[] = {
      {"trace", level_enum::trace}, {"debug", level_enum::debug}, {"info", level_enum::info},
      {"warn", level_enum::warn},   {"error", level_enum::err},   {"off", level_enum::off}};
  for (const auto& [known, level] : kLevels) {
    if (known == name) return level;
  }
  throw InvalidArgument(
      fmt::format("METRALE_LOG is '{}'; trace, debug, info, warn, error and off are accepted", name));
}

backends::CudaCodePath parse_cuda_path(std::string_view name) {
  if (name == "best") return backends::CudaCodePath::kBest;
  if (name == "portable") return backends::CudaCodePath::kPortable;
  throw InvalidArgument(fmt::format("'{}' is no code path; best and portable are accepted", name));
}

bool parse_switch(std::string_view value) {
  if (value == "0" || value == "1") return value == "1";
  throw InvalidArgument(fmt::format("'{}' is not understood; 0 and 1 are accepted", value));
}

}  // namespace

Environment read_environment() {
  Environment environment;
  environment.cpu_isa = parsed("METRALE_CPU_ISA", parse_cpu_isa);
  environment.cpus = parsed("METRALE_CPUS", parse_cpu_list);
  environment.numa = parsed("METRALE_NUMA", backends::parse_numa_policy);
  if (const auto threads = value_of("METRALE_THREADS")) environment.threads = parse_threads(*threads);
  environment.cuda_path = parsed("METRALE_CUDA_PATH", parse_cuda_path);
  environment.cublaslt = value_of("METRALE_CUBLASLT");
  if (environment.cublaslt == "off") environment.cublaslt = "";
  environment.debug_sync_kernels = parsed("METRALE_DEBUG_SYNC_KERNELS", parse_switch).value_or(false);
  environment.log = value_of("METRALE_LOG");
  if (environment.log) (void)parse_level(*environment.log);
  return environment;
}

void apply(const Environment& environment) {
  if (environment.cpu_isa) limit_cpu_isa(*environment.cpu_isa);
  if (environment.log) log().set_level(parse_level(*environment.log));
}

}  // namespace metrale::runtime
