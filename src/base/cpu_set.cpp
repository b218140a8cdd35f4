// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <sched.h>
#include <thread>

#include <fmt/format.h>

#include <metrale/base/cpu_set.h>
#include <metrale/base/error.h>

namespace metrale {
namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw InvalidArgument(fmt::format("'{}' is no list of CPUs: numbers below {} and ranges are, as in 0-3,8",
                                    text, CPU_SETSIZE));
}

unsigned parse_cpu(std::string_view number, std::string_view text) {
  unsigned cpu = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), cpu);
  if (error != std::errc{} || end != number.data() + number.size() || cpu >= CPU_SETSIZE) refuse(text);
  return cpu;
}

}  // namespace

CpuList usable_cpus() {
  CpuList cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
    return cpus;
  }
  for (unsigned cpu = 0; cpu < std::max(1U, std::thread::hardware_concurrency()); ++cpu) cpus.push_back(cpu);
  return cpus;
}

CpuList parse_cpu_list(std::string_view text) {
  CpuList cpus;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, comma - at);
    const std::size_t dash = item.find('-');
    const unsigned first = parse_cpu(item.substr(0, dash), text);
    const unsigned last = dash == std::string_view::npos ? first : parse_cpu(item.substr(dash + 1), text);
    if (last < first) refuse(text);
    for (unsigned cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    at = comma + 1;
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string to_string(const CpuList& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return text;
}

void check_usable(const CpuList& cpus) {
  const CpuList usable = usable_cpus();
  for (const unsigned cpu : cpus) {
    if (std::binary_search(usable.begin(), usable.end(), cpu)) continue;
    throw InvalidArgument(fmt::format("CPU {} does not exist or is not given to this process; {} are usable",
                                      cpu, to_string(usable)));
  }
}

}  // namespace metrale
