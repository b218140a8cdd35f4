// SPDX-License-Identifier: Apache-2.0
// The CUDA backend, over the driver that is found at run time. A build without nvcc has it too: it then runs
// modules from outside only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <metrale/gpu/backend.h>
#include <metrale/gpu/cuda_kernel_table.h>

namespace metrale::backends {

inline constexpr char kCudaDriverLibrary[] = "libcuda.so.1";

struct CudaDevice {
  int ordinal = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  std::uint32_t sm_count = 0;
  std::uint64_t total_memory_bytes = 0;
  std::uint64_t free_memory_bytes = 0;  // 0 where the device could not be opened
  bool integrated = false;              // it shares the host's memory
};

struct CudaDevices {
  std::vector<CudaDevice> devices;
  std::string why_none;    // where there are none: what is missing
  int driver_version = 0;  // 13000 for CUDA 13.0; 0: no driver
};
// Never throws for a machine without a driver or a device: says why instead. Free memory is known by opening
// each device's context, which takes a while; without it that figure is 0.
[[nodiscard]] CudaDevices list_cuda_devices(const std::string& driver_library = kCudaDriverLibrary,
                                            bool with_free_memory = true);

// The primary context of one device and what belongs to it. Shared by the device's backends, and with
// whatever else uses the primary context (PyTorch does). Any number of devices may be open at once.
// Thread-safe.
class CudaHost;
// The host of that device: the one that is in use, also after it lost its context, else a new one. Throws
// Unsupported (no driver, no such device, saying which there are) or DeviceError.
[[nodiscard]] std::shared_ptr<CudaHost> open_cuda_host(
    int ordinal, const std::string& driver_library = kCudaDriverLibrary);

enum class CudaCodePath {
  kBest,      // sm_90a where the device is one, else portable
  kPortable,  // the portable one on every device, compiled by the driver where it has no machine code
};

struct CudaBackendOptions {
  std::uint64_t max_memory_bytes = 0;  // allocations above it throw OutOfMemory; 0: what the device has
  std::uint64_t red_zone_bytes = 0;    // guard band behind every allocation; 0: none
  CudaCodePath path = CudaCodePath::kBest;
  bool synchronize_launches = false;  // wait after every launch, so that an error names its kernel
};

// Throws DeviceError, OutOfMemory, InvalidArgument.
[[nodiscard]] std::unique_ptr<gpu::GpuBackend> make_cuda_backend(std::shared_ptr<CudaHost> host,
                                                                 const CudaBackendOptions& options,
                                                                 const gpu::CudaKernelTable& kernels);

}  // namespace metrale::backends
