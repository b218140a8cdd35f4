// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/gpu/cpu_kernel_table.h>

namespace metrale::gpu {

const CpuKernelTable::Entry* CpuKernelTable::find(std::string_view module, std::string_view function) const {
  const auto found = entries_.find({std::string(module), std::string(function)});
  return found == entries_.end() ? nullptr : &found->second;
}

bool CpuKernelTable::has_module(std::string_view module) const {
  const auto first = entries_.lower_bound({std::string(module), std::string()});
  return first != entries_.end() && first->first.first == module;
}

void CpuKernelTable::insert(std::string_view module, std::string_view function, Entry entry) {
  const bool added = entries_.emplace(std::pair{std::string(module), std::string(function)}, entry).second;
  if (!added)
    throw InvalidArgument(fmt::format("CPU kernel {}::{} is in the table already", module, function));
}

}  // namespace metrale::gpu
