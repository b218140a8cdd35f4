// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/module_set.h"

#include <array>
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/gpu/device_fault.h>

namespace metrale::backends::cuda {
namespace {

bool is_sm90(const gpu::CudaDeviceFacts& facts) {
  return facts.compute_major == 9 && facts.compute_minor == 0;
}

}  // namespace

ModuleSet::ModuleSet(const CudaHost& host, const gpu::CudaKernelTable& table, CudaCodePath path,
                     std::uint64_t fault_address)
    : host_(host), fault_address_(fault_address) {
  for (const auto& [name, images] : table.modules()) {
    const bool takes_sm90a = path == CudaCodePath::kBest && is_sm90(host.facts()) && !images.sm90a.empty();
    const auto image = takes_sm90a ? images.sm90a : images.portable;
    if (!image.empty()) modules_.emplace(name, Module{.image = image, .loaded = nullptr});
  }
}

ModuleSet::~ModuleSet() {
  if (host_.context_lost()) return;
  const ContextScope scope(host_);
  for (const auto& [name, module] : modules_) {
    if (module.loaded == nullptr) continue;
    host_.check_quietly(host_.driver().module_unload(module.loaded), "cuModuleUnload");
  }
}

bool ModuleSet::has(std::string_view module) const {
  const std::scoped_lock lock(mutex_);
  return modules_.contains(module);
}

DriverModule ModuleSet::load(std::string_view name, std::span<const std::byte> image) const {
  // PTX is text that the driver reads up to its end; a terminator costs the other kinds nothing.
  const std::string terminated(reinterpret_cast<const char*>(image.data()), image.size());
  std::array<char, 8192> errors{};
  std::array<int, 2> names{kJitErrorLogBuffer, kJitErrorLogBufferBytes};
  std::array<void*, 2> values{errors.data(), reinterpret_cast<void*>(errors.size() - 1)};
  DriverModule module = nullptr;
  const Result result =
      host_.driver().module_load(&module, terminated.c_str(), names.size(), names.data(), values.data());
  if (result == kSuccess) return module;
  if (means_context_lost(result)) host_.fail(result, fmt::format("loading module {}", name));
  throw InvalidArgument(fmt::format("module {} does not load on device {} (compute capability {}.{}): {}{}{}",
                                    name, host_.facts().ordinal, host_.facts().compute_major,
                                    host_.facts().compute_minor, host_.driver().describe(result),
                                    errors[0] != '\0' ? "; its compiler says: " : "", errors.data()));
}

DriverModule ModuleSet::find(std::string_view module, std::string_view symbol) {
  const auto found = modules_.find(module);
  if (found == modules_.end()) {
    throw InvalidArgument(fmt::format("the CUDA backend has no {}::{} (no such module)", module, symbol));
  }
  Module& entry = found->second;
  if (entry.loaded == nullptr) {
    entry.loaded = load(module, entry.image);
    DeviceAddress address = 0;
    std::size_t bytes = 0;
    if (host_.driver().module_global(&address, &bytes, entry.loaded, gpu::kDeviceFaultSymbol) == kSuccess) {
      // Blocking on the host's stream of nobody: the module is not in use yet.
      host_.check(host_.driver().copy_h2d_async(address, &fault_address_, sizeof(fault_address_),
                                                host_.default_stream()),
                  "cuMemcpyHtoDAsync");
      host_.check(host_.driver().stream_synchronize(host_.default_stream()), "cuStreamSynchronize");
    }
  }
  return entry.loaded;
}

DriverFunction ModuleSet::function(std::string_view module, std::string_view symbol) {
  const std::scoped_lock lock(mutex_);
  DriverFunction function = nullptr;
  const Result result =
      host_.driver().module_function(&function, find(module, symbol), std::string(symbol).c_str());
  if (result == kSuccess) return function;
  if (means_context_lost(result)) host_.fail(result, fmt::format("looking up {}::{}", module, symbol));
  throw InvalidArgument(
      fmt::format("the CUDA backend has no {}::{}: {}", module, symbol, host_.driver().describe(result)));
}

void ModuleSet::allow_shared(DriverFunction function, std::uint32_t bytes) const {
  host_.check(
      host_.driver().function_set_attribute(function, kFunctionMaxDynamicShared, static_cast<int>(bytes)),
      fmt::format("asking for {} bytes of shared memory (a block can have {})", bytes,
                  host_.facts().max_shared_bytes));
}

void ModuleSet::load_foreign(std::string_view module, std::span<const std::byte> image) {
  const std::scoped_lock lock(mutex_);
  if (modules_.contains(module)) {
    throw InvalidArgument(fmt::format("there is a module {} already", module));
  }
  const DriverModule loaded = load(module, image);
  modules_.emplace(module, Module{.image = {}, .loaded = loaded});
}

gpu::DeviceRange ModuleSet::symbol(std::string_view module, std::string_view symbol) {
  const std::scoped_lock lock(mutex_);
  DeviceAddress address = 0;
  std::size_t bytes = 0;
  const Result result =
      host_.driver().module_global(&address, &bytes, find(module, symbol), std::string(symbol).c_str());
  if (result == kSuccess) return {DevicePtr(address), bytes};
  if (means_context_lost(result)) host_.fail(result, fmt::format("looking up {}::{}", module, symbol));
  throw InvalidArgument(
      fmt::format("module {} has no variable {}: {}", module, symbol, host_.driver().describe(result)));
}

}  // namespace metrale::backends::cuda
