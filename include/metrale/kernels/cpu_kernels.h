// SPDX-License-Identifier: Apache-2.0
// Every CPU kernel body, for the composition root to hand to the CPU backend.
#pragma once

#include <metrale/gpu/cpu_kernel_table.h>

namespace metrale::kernels {

// Adds the body of every KernelId under include/metrale/kernels/.
void register_cpu_kernels(gpu::CpuKernelTable& table);

}  // namespace metrale::kernels
