// SPDX-License-Identifier: Apache-2.0
// cutlass: a product of CUTLASS's, a foreign kernel in builds that have its headers (METRALE_PEERS).
#pragma once

#include <metrale/kernels/linear_fp8.h>

namespace metrale::kernels {

// As linear_fp8, to BF16, on devices of compute capability 9.0; throws Unsupported otherwise. `in` and
// `weight` start at multiples of 16 bytes. The workspace is not used.
static_assert(sizeof(LinearFp8Args) == 80);
// cuda-only
inline constexpr gpu::KernelId<LinearFp8Args> kCutlassLinearFp8{"cutlass", "linear_fp8"};

}  // namespace metrale::kernels
