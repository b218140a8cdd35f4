// SPDX-License-Identifier: Apache-2.0
// How much memory the host has and can spare, as this process may use it.
#pragma once

#include <cstdint>
#include <string>

namespace metrale::backends::cpu {

struct HostMemoryInfo {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;
};

// The smaller of the machine's figures and those of every control group above this process. `root` stands
// before "/proc" and "/sys" (tests). A file that is absent or unreadable sets no limit.
[[nodiscard]] HostMemoryInfo host_memory_info(const std::string& root = "");

}  // namespace metrale::backends::cpu
