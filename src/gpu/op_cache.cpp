// SPDX-License-Identifier: Apache-2.0
#include <exception>

#include <fmt/format.h>

#include <metrale/gpu/backend.h>
#include <metrale/gpu/op_cache.h>

namespace metrale::gpu {

KernelHandle OpCache::kernel(GpuBackend& gpu, std::string_view module, std::string_view function) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = kernels_.find(KernelName{module, function});
    if (found != kernels_.end()) return found->second;
  }
  const KernelHandle handle = gpu.kernel(module, function);
  const std::unique_lock lock(mutex_);
  kernels_.emplace(std::pair{std::string(module), std::string(function)}, handle);
  return handle;
}

DevicePtr OpCache::scratch(GpuBackend& gpu, std::string_view tag, std::size_t bytes) {
  const std::unique_lock lock(mutex_);
  const auto found = scratch_.find(tag);
  if (found != scratch_.end() && found->second.bytes >= bytes) return found->second.ptr;
  // Every place that will hold an address is made before the address exists.
  Scratch& entry = found != scratch_.end() ? found->second : scratch_[std::string(tag)];
  retired_.reserve(retired_.size() + 1);
  const DevicePtr grown = gpu.alloc(bytes);
  if (!entry.ptr.is_null()) retired_.push_back(entry.ptr);
  entry = {.ptr = grown, .bytes = bytes};
  return grown;
}

bool OpCache::once(std::string_view key) {
  return first_n(key, 1);
}

bool OpCache::first_n(std::string_view key, std::uint32_t n) {
  const std::unique_lock lock(mutex_);
  auto found = gates_.find(key);
  if (found == gates_.end()) found = gates_.emplace(std::string(key), 0).first;
  if (found->second >= n) return false;
  ++found->second;
  return true;
}

bool OpCache::first_shape(std::string_view name, std::uint64_t m, std::uint64_t n, std::uint64_t k) {
  return once(fmt::format("{} {}x{}x{}", name, m, n, k));
}

void OpCache::release(GpuBackend& gpu) {
  std::vector<DevicePtr> owned;
  {
    const std::unique_lock lock(mutex_);
    retired_.reserve(retired_.size() + scratch_.size());
    for (const auto& [tag, entry] : scratch_) retired_.push_back(entry.ptr);
    scratch_.clear();
    owned.swap(retired_);
  }
  std::exception_ptr first;
  for (const DevicePtr ptr : owned) {
    try {
      gpu.free(ptr);
    } catch (...) {
      // Kept and rethrown below, once the rest is free too.
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace metrale::gpu
