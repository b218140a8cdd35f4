// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/host_info.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace metrale::backends::cpu {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// A file that holds one number; "max" and anything else that is no number is no limit.
std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number after `key` in a file of "key number" lines.
std::optional<std::uint64_t> field_in(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t digits = line.find_first_of("0123456789", key.size());
    if (digits != std::string::npos) return std::stoull(line.substr(digits));
  }
  return std::nullopt;
}

void limit_by_group(HostMemoryInfo& info, const std::string& directory, const char* limit_file,
                    const char* usage_file, std::string_view reclaimable_key) {
  const std::uint64_t limit = number_in(directory + limit_file).value_or(kNoLimit);
  if (limit >= info.total_bytes) return;
  const std::uint64_t used = number_in(directory + usage_file).value_or(0);
  // File pages that were not used of late count as used, but give way.
  const std::uint64_t cached =
      std::min(used, field_in(directory + "/memory.stat", reclaimable_key).value_or(0));
  info.total_bytes = limit;
  info.available_bytes = std::min(info.available_bytes, limit - std::min(limit, used - cached));
}

// The group's path in the unified hierarchy ("0::/path"); empty where there is none.
std::string own_group(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return {};
}

}  // namespace

HostMemoryInfo host_memory_info(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  HostMemoryInfo info{.total_bytes = field_in(meminfo, "MemTotal:").value_or(kNoLimit >> 10) << 10,
                      .available_bytes = field_in(meminfo, "MemAvailable:").value_or(kNoLimit >> 10) << 10};
  const std::string groups = root + "/sys/fs/cgroup";
  std::string group = own_group(root);
  while (group.ends_with('/')) group.pop_back();
  for (;;) {
    limit_by_group(info, groups + group, "/memory.max", "/memory.current", "inactive_file ");
    if (group.empty()) break;
    group.resize(group.rfind('/'));
  }
  limit_by_group(info, groups + "/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                 "total_inactive_file ");
  return info;
}

}  // namespace metrale::backends::cpu
