// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include <metrale/backends/cpu.h>
#include <metrale/backends/cuda.h>
#include <metrale/base/cpu_features.h>
#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/kernels/cpu_kernels.h>
#include <metrale/kernels/cuda_kernels.h>
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

// The N of "cuda:N"; 0 for "cuda"; none for anything else.
std::optional<int> cuda_ordinal(std::string_view device) {
  if (device == "cuda") return 0;
  if (!device.starts_with("cuda:")) return std::nullopt;
  const std::string_view digits = device.substr(5);
  int ordinal = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
  if (error != std::errc{} || end != digits.data() + digits.size() || ordinal < 0) return std::nullopt;
  return ordinal;
}

// Why this build's kernels do not run on the device; empty where they do.
std::string why_unusable(const backends::CudaDevices& found, const backends::CudaDevice& device) {
  if (!kernels::has_cuda_kernels()) {
    return "this build was made without nvcc and has no CUDA kernels (the preset cuda has)";
  }
  const kernels::CudaKernelNeeds needs = kernels::cuda_kernel_needs();
  if (found.driver_version / 1000 < needs.driver_major) {
    return fmt::format("its driver is one for CUDA {}, and the kernels of this build need CUDA {}: update it",
                       found.driver_version / 1000, needs.driver_major);
  }
  if (device.compute_major < needs.compute_major) {
    return fmt::format("its compute capability is {}.{}, and the kernels need {}.0", device.compute_major,
                       device.compute_minor, needs.compute_major);
  }
  return {};
}

std::unique_ptr<gpu::GpuBackend> open_cuda(const BackendOptions& options, int ordinal) {
  if (!kernels::has_cuda_kernels()) throw Unsupported("this build", "CUDA: " + why_unusable({}, {}));
  const backends::CudaDevices found = backends::list_cuda_devices(options.cuda_driver, false);
  for (const backends::CudaDevice& device : found.devices) {
    const std::string reason = device.ordinal == ordinal ? why_unusable(found, device) : std::string();
    if (!reason.empty()) throw Unsupported(fmt::format("cuda:{}", ordinal), "this build: " + reason);
  }
  gpu::CudaKernelTable table;
  kernels::CudaKernelOptions kernel_options;
  if (options.cublaslt) kernel_options.cublaslt = *options.cublaslt;
  kernels::register_cuda_kernels(table, kernel_options);
  return backends::make_cuda_backend(backends::open_cuda_host(ordinal, options.cuda_driver),
                                     {.max_memory_bytes = options.max_memory_bytes,
                                      .red_zone_bytes = options.red_zone_bytes,
                                      .path = options.cuda_path,
                                      .synchronize_launches = options.synchronize_launches},
                                     table);
}

DeviceDescription describe(const backends::CudaDevice& device) {
  return {.name = fmt::format("cuda:{}", device.ordinal),
          .description = fmt::format("{}, compute capability {}.{}, {} multiprocessors{}", device.name,
                                     device.compute_major, device.compute_minor, device.sm_count,
                                     device.integrated ? ", memory shared with the host" : ""),
          .total_memory_bytes = device.total_memory_bytes,
          .free_memory_bytes = device.free_memory_bytes,
          .unavailable = {}};
}

// The first CUDA device that is usable and opens, else the processor.
std::unique_ptr<gpu::GpuBackend> open_best(const BackendOptions& options) {
  const backends::CudaDevices found = backends::list_cuda_devices(options.cuda_driver, false);
  for (const backends::CudaDevice& device : found.devices) {
    std::string reason = why_unusable(found, device);
    try {
      if (reason.empty()) return open_cuda(options, device.ordinal);
    } catch (const DeviceError& error) {
      reason = error.what();
    } catch (const OutOfMemory& error) {
      reason = error.what();
    }
    log().warn("cuda:{} is left out: {}", device.ordinal, reason);
  }
  return open_cpu(options);
}

}  // namespace

std::unique_ptr<gpu::GpuBackend> open_backend(const BackendOptions& options) {
  if (options.device == "cpu") return open_cpu(options);
  if (options.device == "auto") return open_best(options);
  if (const auto ordinal = cuda_ordinal(options.device)) return open_cuda(options, *ordinal);
  throw InvalidArgument(
      fmt::format("unknown device '{}': cpu, cuda, cuda:N and auto are there", options.device));
}

std::vector<DeviceDescription> list_devices(const BackendOptions& options) {
  const auto cpu = open_cpu(options);
  std::vector<DeviceDescription> devices{{.name = "cpu",
                                          .description = fmt::format("{}, {}, {} threads", processor_name(),
                                                                     to_string(cpu_isa()), cpu->sm_count()),
                                          .total_memory_bytes = cpu->total_memory_bytes(),
                                          .free_memory_bytes = cpu->free_memory_bytes(),
                                          .unavailable = {}}};
  const backends::CudaDevices cuda = backends::list_cuda_devices(options.cuda_driver);
  for (const backends::CudaDevice& device : cuda.devices) {
    devices.push_back(describe(device));
    devices.back().unavailable = why_unusable(cuda, device);
  }
  if (cuda.devices.empty()) {
    devices.push_back({.name = "cuda", .description = {}, .unavailable = cuda.why_none});
  }
  return devices;
}

}  // namespace metrale::runtime
