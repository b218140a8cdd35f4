// SPDX-License-Identifier: Apache-2.0
// Which vector instructions kernels may use: what the processor has, unless masked (tests run the suite with
// AVX-512 masked off).
#pragma once

#include <string_view>

namespace metrale {

enum class CpuIsa { kAvx2, kAvx512, kAvx512Bf16 };

// The best level that the processor has and no mask hides. Thread-safe.
[[nodiscard]] CpuIsa cpu_isa();
// Hides everything above `isa` for the rest of the process. No kernel may run meanwhile.
void limit_cpu_isa(CpuIsa isa);
// "avx2", "avx512", "avx512bf16". Throws InvalidArgument listing them.
[[nodiscard]] CpuIsa parse_cpu_isa(std::string_view name);
[[nodiscard]] std::string_view to_string(CpuIsa isa);

}  // namespace metrale
