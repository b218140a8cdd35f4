// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/step.h>

#include "kernels/math/device.cuh"

using namespace metrale;
using namespace metrale::kernels;
using namespace metrale::kernels::device;

// A thread for each delta.
extern "C" __global__ void apply_table_deltas(const __grid_constant__ ApplyTableDeltasArgs a) {
  const std::uint32_t count = read_rows(a.num_deltas, a.max_deltas);
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::uint32_t entry = pointer<const std::uint32_t>(a.entries)[i];
    if (entry >= a.table_entries) {
      report_fault(gpu::DeviceFaultCode::kBadTableEntry, static_cast<std::uint32_t>(i), entry);
      continue;
    }
    pointer<std::uint32_t>(a.tables)[entry] = pointer<const std::uint32_t>(a.blocks)[i];
  }
}
