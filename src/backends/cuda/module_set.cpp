// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/module_set.h"

#include <algorithm>
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
                     std::uint64_t fault_address, DriverStream transfer)
    : host_(host), fault_address_(fault_address), transfer_(transfer) {
  for (const auto& [name, images] : table.modules()) {
    const bool takes_sm90a = path == CudaCodePath::kBest && is_sm90(host.facts()) && !images.sm90a.empty();
    const auto image = takes_sm90a ? images.sm90a : images.portable;
    if (!image.empty()) modules_.emplace(name, Module{.image = image, .loaded = nullptr});
  }
}

ModuleSet::~ModuleSet() {
  if (host_.context_lost()) return;
  const ContextScope scope(host_);
  for (const auto& entry : modules_) {
    const DriverModule loaded = entry.second.loaded;
    if (loaded == nullptr) continue;
    host_.tear_down([&] { return host_.driver().module_unload(loaded); }, "cuModuleUnload");
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
  if (means_context_lost(result)) host_.fail(result, fmt::format("cuModuleLoadDataEx of module {}", name));
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
    const DriverModule loaded = load(module, entry.image);
    try {
      connect_fault_word(module, loaded);
    } catch (...) {
      host_.tear_down([&] { return host_.driver().module_unload(loaded); }, "cuModuleUnload");
      throw;
    }
    entry.loaded = loaded;
  }
  return entry.loaded;
}

void ModuleSet::connect_fault_word(std::string_view name, DriverModule module) const {
  DeviceAddress address = 0;
  std::size_t bytes = 0;
  const Result result = host_.driver().module_global(&address, &bytes, module, gpu::kDeviceFaultSymbol);
  if (result == kErrorNotFound) return;
  if (result != kSuccess) host_.fail(result, fmt::format("cuModuleGetGlobal in module {}", name));
  host_.check(host_.driver().copy_h2d_async(address, &fault_address_, sizeof(fault_address_), transfer_),
              "cuMemcpyHtoDAsync");
  host_.check(host_.driver().stream_synchronize(transfer_), "cuStreamSynchronize");
}

DriverFunction ModuleSet::function(std::string_view module, std::string_view symbol) {
  const std::scoped_lock lock(mutex_);
  DriverFunction function = nullptr;
  const Result result =
      host_.driver().module_function(&function, find(module, symbol), std::string(symbol).c_str());
  if (result == kSuccess) {
    // Else its first launch would load it, and wait for whatever runs.
    if (host_.driver().function_load != nullptr) {
      host_.check(host_.driver().function_load(function), "cuFuncLoad");
    }
    int static_bytes = 0;
    host_.check(host_.driver().function_get_attribute(&static_bytes, kFunctionStaticShared, function),
                "cuFuncGetAttribute");
    const auto own = std::min(kSharedWithoutAsking, static_cast<std::uint32_t>(static_bytes));
    allowed_shared_bytes_.try_emplace(function, kSharedWithoutAsking - own);
    return function;
  }
  if (result != kErrorNotFound) {
    host_.fail(result, fmt::format("cuModuleGetFunction of {}::{}", module, symbol));
  }
  throw InvalidArgument(
      fmt::format("the CUDA backend has no {}::{}: {}", module, symbol, host_.driver().describe(result)));
}

Result ModuleSet::allow_shared(DriverFunction function, std::uint32_t bytes) {
  const std::scoped_lock lock(mutex_);
  std::uint32_t& allowed = allowed_shared_bytes_[function];
  if (bytes <= allowed) return kSuccess;
  const Result result =
      host_.driver().function_set_attribute(function, kFunctionMaxDynamicShared, static_cast<int>(bytes));
  if (result == kSuccess) allowed = bytes;
  return result;
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
  if (result != kErrorNotFound) {
    host_.fail(result, fmt::format("cuModuleGetGlobal of {}::{}", module, symbol));
  }
  throw InvalidArgument(
      fmt::format("module {} has no variable {}: {}", module, symbol, host_.driver().describe(result)));
}

}  // namespace metrale::backends::cuda
