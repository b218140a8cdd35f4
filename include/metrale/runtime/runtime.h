// SPDX-License-Identifier: Apache-2.0
// The composition root: which devices there are, and a backend made for one with its kernels in place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <metrale/backends/cpu.h>
#include <metrale/backends/cuda.h>
#include <metrale/base/cpu_set.h>
#include <metrale/gpu/backend.h>

namespace metrale::runtime {

struct BackendOptions {
  // As `metrale devices` names it; "cuda" is cuda:0, "auto" is the first CUDA device that this build has
  // kernels for and that opens, else cpu. The log says why a device was left out.
  std::string device = "cpu";
  unsigned threads = 0;  // CPU: worker threads; 0: one for each of `cpus` or usable processor
  CpuList cpus{};        // CPU: where they run, one on each in turn; empty: the system decides
  backends::NumaPolicy numa = backends::NumaPolicy::kNone;  // CPU: which memory large allocations take
  std::uint64_t max_memory_bytes = 0;                       // cap on device memory; 0: what the device has
  std::uint64_t red_zone_bytes = 0;  // guard band behind every allocation, for finding stray writes
  backends::CudaCodePath cuda_path = backends::CudaCodePath::kBest;
  bool synchronize_launches = false;  // CUDA: wait after every launch, so that an error names its kernel
  std::optional<std::string>
      cublaslt{};  // CUDA: the library for linear layers; empty: none; not given: found
  std::string cuda_driver = backends::kCudaDriverLibrary;
};

struct DeviceDescription {
  std::string name;         // what --device takes
  std::string description;  // processor, instruction set, threads
  std::uint64_t total_memory_bytes = 0;
  std::uint64_t free_memory_bytes = 0;
  std::string unavailable;  // why there is no such device here; empty for one that can be opened
};

// Throws InvalidArgument for an unknown device, naming those there are, and Unsupported for one that is not
// here, saying what is missing.
[[nodiscard]] std::unique_ptr<gpu::GpuBackend> open_backend(const BackendOptions& options);

[[nodiscard]] std::vector<DeviceDescription> list_devices(const BackendOptions& options);

}  // namespace metrale::runtime
