// SPDX-License-Identifier: Apache-2.0
// Which processors this process may run on, and lists of them as users write them ("0-3,8").
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace metrale {

// CPU numbers, ascending.
using CpuList = std::vector<unsigned>;

// Those that the calling thread may run on (taskset, cgroups and the machine decide); never empty.
[[nodiscard]] CpuList usable_cpus();

// "0-3,8" -> 0 1 2 3 8, without repeats. Throws InvalidArgument for text that is no such list.
[[nodiscard]] CpuList parse_cpu_list(std::string_view text);

// The shortest text that parse_cpu_list reads as `cpus`.
[[nodiscard]] std::string to_string(const CpuList& cpus);

// Throws InvalidArgument where one of `cpus` does not exist or is not usable, naming it and the usable ones.
void check_usable(const CpuList& cpus);

}  // namespace metrale
