// SPDX-License-Identifier: Apache-2.0
// The CPU backend: a product path and a truth machine. Streams are asynchronous in-order queues run on one
// thread pool; events and graphs are real, so a missing wait fails here as it would on a GPU.
#pragma once

#include <cstdint>
#include <memory>

#include <metrale/gpu/backend.h>
#include <metrale/gpu/cpu_kernel_table.h>

namespace metrale::backends {

struct CpuBackendOptions {
  unsigned threads = 0;                // 0: one for each usable processor, at least two
  std::uint64_t max_memory_bytes = 0;  // allocations above it throw OutOfMemory; 0: what the host has
  std::uint64_t red_zone_bytes = 0;    // guard band behind every allocation; 0: none
  std::uint64_t schedule_seed = 0;     // non-zero: streams are delayed and reordered at random from this seed
};

// The table is copied. Throws InvalidArgument, OutOfMemory.
[[nodiscard]] std::unique_ptr<gpu::GpuBackend> make_cpu_backend(const CpuBackendOptions& options,
                                                                const gpu::CpuKernelTable& kernels);

}  // namespace metrale::backends
