// SPDX-License-Identifier: Apache-2.0
// Environment: every environment variable the product reads, read here and nowhere else. docs/settings.md
// lists them.
#pragma once

#include <optional>
#include <string>

#include <metrale/backends/cpu.h>
#include <metrale/backends/cuda.h>
#include <metrale/base/cpu_features.h>
#include <metrale/base/cpu_set.h>

namespace metrale::runtime {

struct Environment {
  std::optional<CpuIsa> cpu_isa;                    // METRALE_CPU_ISA: avx2, avx512, avx512bf16
  std::optional<unsigned> threads;                  // METRALE_THREADS: worker threads of the CPU backend
  std::optional<CpuList> cpus;                      // METRALE_CPUS: where they run, as in 0-3,8
  std::optional<backends::NumaPolicy> numa;         // METRALE_NUMA: none, interleave, bind
  std::optional<backends::CudaCodePath> cuda_path;  // METRALE_CUDA_PATH: best, portable
  std::optional<std::string> cublaslt;              // METRALE_CUBLASLT: a library, or off
  bool debug_sync_kernels = false;                  // METRALE_DEBUG_SYNC_KERNELS: 0, 1
  std::optional<std::string> log;                   // METRALE_LOG: trace, debug, info, warn, error, off
};

// Throws InvalidArgument naming the variable, its value and what is accepted.
[[nodiscard]] Environment read_environment();

// Applies the process-wide settings (instruction mask, log level). Call once, before the first backend.
void apply(const Environment& environment);

}  // namespace metrale::runtime
