// SPDX-License-Identifier: Apache-2.0
// ModuleSet: the modules of one backend: the embedded ones, loaded when they are first asked for, and those
// from outside. They are unloaded with it. Thread-safe; callers have made the context current.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include <metrale/gpu/types.h>

#include "backends/cuda/host.h"

namespace metrale::backends::cuda {

class ModuleSet {
 public:
  // Embedded modules report faults to `fault_address`, a gpu::DeviceFault in pinned memory. `transfer` is a
  // stream that nothing waits in.
  ModuleSet(const CudaHost& host, const gpu::CudaKernelTable& table, CudaCodePath path,
            std::uint64_t fault_address, DriverStream transfer);
  ~ModuleSet();
  ModuleSet(const ModuleSet&) = delete;
  ModuleSet& operator=(const ModuleSet&) = delete;

  [[nodiscard]] bool has(std::string_view module) const;
  // Throws InvalidArgument naming module::symbol.
  [[nodiscard]] DriverFunction function(std::string_view module, std::string_view symbol);
  // A launch of the function, one that function() returned, may ask for `bytes` of dynamic shared memory from
  // now on; more stays allowed. Returns what cuFuncSetAttribute says: the caller knows what it is for.
  [[nodiscard]] Result allow_shared(DriverFunction function, std::uint32_t bytes);
  void load_foreign(std::string_view module, std::span<const std::byte> image);
  [[nodiscard]] gpu::DeviceRange symbol(std::string_view module, std::string_view symbol);

 private:
  struct Module {
    std::span<const std::byte> image;  // embedded and not loaded yet
    DriverModule loaded = nullptr;
  };
  [[nodiscard]] DriverModule load(std::string_view name, std::span<const std::byte> image) const;
  // Tells a module that has the variable where to report faults.
  void connect_fault_word(std::string_view name, DriverModule module) const;
  // Throws InvalidArgument naming module::symbol.
  [[nodiscard]] DriverModule find(std::string_view module, std::string_view symbol);

  const CudaHost& host_;
  const std::uint64_t fault_address_;
  const DriverStream transfer_;
  // Shared memory, static and dynamic, that a launch gets without asking for it first.
  static constexpr std::uint32_t kSharedWithoutAsking = 48 * 1024;

  mutable std::mutex mutex_;
  std::map<DriverFunction, std::uint32_t> allowed_shared_bytes_;  // dynamic
  std::map<std::string, Module, std::less<>> modules_;
};

}  // namespace metrale::backends::cuda
