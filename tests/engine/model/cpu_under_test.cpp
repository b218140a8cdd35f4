// SPDX-License-Identifier: Apache-2.0
#include <metrale/backends/cpu.h>
#include <metrale/kernels/cpu_kernels.h>

#include "engine/model/harness.h"

namespace metrale::test {

std::unique_ptr<gpu::GpuBackend> make_backend(unsigned threads, std::uint64_t max_memory_bytes) {
  gpu::CpuKernelTable table;
  kernels::register_cpu_kernels(table);
  return backends::make_cpu_backend({.threads = threads, .max_memory_bytes = max_memory_bytes}, table);
}

bool serves_every_kv_format() {
  return true;
}

}  // namespace metrale::test
