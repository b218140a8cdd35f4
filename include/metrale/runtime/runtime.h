// SPDX-License-Identifier: Apache-2.0
// The composition root: which devices there are, and a backend made for one with its kernels in place.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <metrale/backends/cpu.h>
#include <metrale/base/cpu_set.h>
#include <metrale/gpu/backend.h>

namespace metrale::runtime {

struct BackendOptions {
  std::string device = "cpu";  // as `metrale devices` names it
  unsigned threads = 0;        // CPU: worker threads; 0: one for each of `cpus` or usable processor
  CpuList cpus{};              // CPU: where they run, one on each in turn; empty: the system decides
  backends::NumaPolicy numa = backends::NumaPolicy::kNone;  // CPU: which memory large allocations take
  std::uint64_t max_memory_bytes = 0;                       // CPU: cap on device memory; 0: what the host has
  std::uint64_t red_zone_bytes = 0;  // guard band behind every allocation, for finding stray writes
};

struct DeviceDescription {
  std::string name;         // what --device takes
  std::string description;  // processor, instruction set, threads
  std::uint64_t total_memory_bytes = 0;
  std::uint64_t free_memory_bytes = 0;
};

// Throws InvalidArgument for an unknown device, naming those there are.
[[nodiscard]] std::unique_ptr<gpu::GpuBackend> open_backend(const BackendOptions& options);

[[nodiscard]] std::vector<DeviceDescription> list_devices(const BackendOptions& options);

}  // namespace metrale::runtime
