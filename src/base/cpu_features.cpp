// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include <fmt/format.h>
#include <hwy/targets.h>

#include <metrale/base/cpu_features.h>
#include <metrale/base/error.h>

namespace metrale {
namespace {

std::atomic<CpuIsa> g_limit{CpuIsa::kAvx512Bf16};

CpuIsa detect() {
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  if (!avx512) return CpuIsa::kAvx2;
  return __builtin_cpu_supports("avx512bf16") ? CpuIsa::kAvx512Bf16 : CpuIsa::kAvx512;
}

}  // namespace

CpuIsa cpu_isa() {
  static const CpuIsa detected = detect();
  return std::min(detected, g_limit.load(std::memory_order_relaxed));
}

void limit_cpu_isa(CpuIsa isa) {
  g_limit = isa;
  if (isa != CpuIsa::kAvx2) return;
  hwy::DisableTargets(HWY_AVX2 - 1);  // better targets have lower bits
  if (hwy::GetChosenTarget().IsInitialized()) hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

CpuIsa parse_cpu_isa(std::string_view name) {
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    if (name == to_string(isa)) return isa;
  }
  throw InvalidArgument(fmt::format("unknown instruction set '{}': avx2, avx512 or avx512bf16", name));
}

std::string_view to_string(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "unknown";
}

}  // namespace metrale
