// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/numa.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <linux/mempolicy.h>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "backends/cpu/memory_block.h"

namespace metrale::backends {
namespace cpu {
namespace {

constexpr std::size_t kMaskBits = 1024;
constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);

[[noreturn]] void throw_unsupported(std::string_view call, int error) {
  throw Unsupported("NUMA policy",
                    fmt::format("{}: {}; use none", call, std::generic_category().message(error)));
}

bool has_cpu_of(unsigned node, const CpuList& cpus) {
  std::ifstream file(fmt::format("/sys/devices/system/node/node{}/cpulist", node));
  std::string list;
  if (!std::getline(file, list) || list.empty()) return false;
  const CpuList own = parse_cpu_list(list);
  return std::any_of(cpus.begin(), cpus.end(),
                     [&](unsigned cpu) { return std::binary_search(own.begin(), own.end(), cpu); });
}

}  // namespace

NumaPlacement::NumaPlacement(NumaPolicy policy, const CpuList& cpus) : policy_(policy) {
  if (policy == NumaPolicy::kNone) return;
  // The kernel reads one bit less than it is told.
  if (::syscall(SYS_get_mempolicy, nullptr, nodes_.data(), kMaskBits + 1, nullptr, MPOL_F_MEMS_ALLOWED) !=
      0) {
    throw_unsupported("get_mempolicy", errno);
  }
  if (policy == NumaPolicy::kBind) {
    for (std::size_t node = 0; node < kMaskBits; ++node) {
      const unsigned long bit = 1UL << node % kWordBits;
      unsigned long& word = nodes_[node / kWordBits];
      if ((word & bit) != 0 && !has_cpu_of(static_cast<unsigned>(node), cpus)) word &= ~bit;
    }
    if (std::all_of(nodes_.begin(), nodes_.end(), [](unsigned long word) { return word == 0; })) {
      throw Unsupported("NUMA policy bind", fmt::format("CPUs {} have no memory of their own; use none or "
                                                        "interleave",
                                                        metrale::to_string(cpus)));
    }
  }
  // A system that refuses shows it now, not in the middle of loading a model.
  std::byte* const trial = acquire_block(kMappedFromBytes);
  if (trial == nullptr) throw OutOfMemory("device", kMappedFromBytes, 0);
  const int error = bind(trial, kMappedFromBytes);
  release_block(trial, kMappedFromBytes);
  if (error != 0) throw_unsupported("mbind", error);
}

int NumaPlacement::bind(std::byte* block, std::size_t bytes) const noexcept {
  const int mode = policy_ == NumaPolicy::kInterleave ? MPOL_INTERLEAVE : MPOL_BIND;
  return ::syscall(SYS_mbind, block, bytes, mode, nodes_.data(), kMaskBits + 1, 0U) == 0 ? 0 : errno;
}

bool NumaPlacement::place(std::byte* block, std::size_t bytes) const noexcept {
  return policy_ == NumaPolicy::kNone || bytes < kMappedFromBytes || bind(block, bytes) == 0;
}

}  // namespace cpu

NumaPolicy parse_numa_policy(std::string_view name) {
  for (const NumaPolicy policy : {NumaPolicy::kNone, NumaPolicy::kInterleave, NumaPolicy::kBind}) {
    if (name == to_string(policy)) return policy;
  }
  throw InvalidArgument(fmt::format("'{}' is no NUMA policy: none, interleave and bind are", name));
}

std::string_view to_string(NumaPolicy policy) {
  switch (policy) {
    case NumaPolicy::kNone:
      return "none";
    case NumaPolicy::kInterleave:
      return "interleave";
    case NumaPolicy::kBind:
      return "bind";
  }
  return "?";
}

}  // namespace metrale::backends
