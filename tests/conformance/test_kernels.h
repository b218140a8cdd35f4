// SPDX-License-Identifier: Apache-2.0
// The kernels of the backend conformance suite.
#pragma once

#include <metrale/gpu/cpu_kernel_table.h>
#include <metrale/gpu/kernel.h>

#include "conformance/test_kernels_args.h"

namespace metrale::testing_kernels {

template <class Args>
[[nodiscard]] gpu::LaunchShape launch_shape(const Args&) {
  return {.grid = {}, .block = {.x = 32}, .shared_bytes = 0};
}

[[nodiscard]] gpu::CpuKernelTable cpu_kernels();

}  // namespace metrale::testing_kernels
