// SPDX-License-Identifier: Apache-2.0
// NumaPlacement: on which memory nodes of the host the backend's large allocations lie.
#pragma once

#include <array>
#include <cstddef>

#include <metrale/backends/cpu.h>
#include <metrale/base/cpu_set.h>

namespace metrale::backends::cpu {

class NumaPlacement {
 public:
  // `cpus` are those that the workers run on. Throws Unsupported where the system takes no such policy.
  NumaPlacement(NumaPolicy policy, const CpuList& cpus);

  // For `bytes` from `block` on, which nobody has touched yet. Does nothing to memory from the heap. False
  // where the system has no memory to note it down.
  [[nodiscard]] bool place(std::byte* block, std::size_t bytes) const noexcept;

 private:
  using NodeMask = std::array<unsigned long, 1024 / (8 * sizeof(unsigned long))>;

  // 0 or an errno value.
  [[nodiscard]] int bind(std::byte* block, std::size_t bytes) const noexcept;

  NumaPolicy policy_;
  NodeMask nodes_{};
};

}  // namespace metrale::backends::cpu
