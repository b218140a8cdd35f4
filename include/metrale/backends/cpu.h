// SPDX-License-Identifier: Apache-2.0
// The CPU backend: a product path and a truth machine. Streams are asynchronous in-order queues run on one
// thread pool; events and graphs are real, so a missing wait fails here as it would on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <metrale/base/cpu_set.h>
#include <metrale/gpu/backend.h>
#include <metrale/gpu/cpu_kernel_table.h>

namespace metrale::backends {

// On which memory nodes of a machine of several sockets allocations of 2 MiB and more lie.
enum class NumaPolicy {
  kNone,        // the system's rule: where the thread runs that first touches a page
  kInterleave,  // page by page over all nodes that this process may use
  kBind,        // only on the nodes of the CPUs that the workers run on
};
// "none", "interleave", "bind". Throws InvalidArgument listing them.
[[nodiscard]] NumaPolicy parse_numa_policy(std::string_view name);
[[nodiscard]] std::string_view to_string(NumaPolicy policy);

struct CpuBackendOptions {
  unsigned threads = 0;  // 0: one for each of `cpus`, else each usable processor; at least two
  CpuList cpus{};        // thread i runs on the i-th of them only; empty: the system decides
  NumaPolicy numa = NumaPolicy::kNone;
  std::uint64_t max_memory_bytes = 0;  // allocations above it throw OutOfMemory; 0: what the host has
  std::uint64_t red_zone_bytes = 0;    // guard band behind every allocation; 0: none
  std::uint64_t schedule_seed = 0;     // non-zero: streams are delayed and reordered at random from this seed
};

// The table is copied. Throws InvalidArgument (a CPU that is not there), OutOfMemory, DeviceError (the system
// gives fewer threads), Unsupported (a NUMA policy that it does not take).
[[nodiscard]] std::unique_ptr<gpu::GpuBackend> make_cpu_backend(const CpuBackendOptions& options,
                                                                const gpu::CpuKernelTable& kernels);

}  // namespace metrale::backends
