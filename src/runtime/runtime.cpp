// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include <fmt/format.h>

#include <metrale/backends/cpu.h>
#include <metrale/base/cpu_features.h>
#include <metrale/base/error.h>
#include <metrale/kernels/cpu_kernels.h>
#include <metrale/runtime/runtime.h>

namespace metrale::runtime {
namespace {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::unique_ptr<gpu::GpuBackend> open_cpu(const BackendOptions& options) {
  gpu::CpuKernelTable table;
  kernels::register_cpu_kernels(table);
  return backends::make_cpu_backend({.threads = options.threads,
                                     .cpus = options.cpus,
                                     .numa = options.numa,
                                     .max_memory_bytes = options.max_memory_bytes,
                                     .red_zone_bytes = options.red_zone_bytes},
                                    table);
}

}  // namespace

std::unique_ptr<gpu::GpuBackend> open_backend(const BackendOptions& options) {
  if (options.device != "cpu" && options.device != "auto") {
    throw InvalidArgument(fmt::format("unknown device '{}': this build has cpu", options.device));
  }
  return open_cpu(options);
}

std::vector<DeviceDescription> list_devices(const BackendOptions& options) {
  const auto cpu = open_cpu(options);
  return {{.name = "cpu",
           .description =
               fmt::format("{}, {}, {} threads", processor_name(), to_string(cpu_isa()), cpu->sm_count()),
           .total_memory_bytes = cpu->total_memory_bytes(),
           .free_memory_bytes = cpu->free_memory_bytes()}};
}

}  // namespace metrale::runtime
