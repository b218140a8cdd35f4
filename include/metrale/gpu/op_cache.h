// SPDX-License-Identifier: Apache-2.0
// OpCache: what operations remember about one backend: resolved kernels, grow-only scratch buffers, and gates
// for messages that should appear once. One per backend, never global; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <metrale/gpu/types.h>

namespace metrale::gpu {

class GpuBackend;

class OpCache {
 public:
  OpCache() = default;
  ~OpCache() = default;
  OpCache(const OpCache&) = delete;
  OpCache& operator=(const OpCache&) = delete;

  // The backend's kernel, looked up at the first call. Throws what GpuBackend::kernel throws; a failed
  // look-up is not remembered.
  [[nodiscard]] KernelHandle kernel(GpuBackend& gpu, std::string_view module, std::string_view function);

  // A buffer of at least `bytes` for this tag. When it must grow, the old one stays allocated until
  // release(), because captured graphs may hold its address. Throws OutOfMemory.
  [[nodiscard]] DevicePtr scratch(GpuBackend& gpu, std::string_view tag, std::size_t bytes);

  // True for the first call with this key / for its first n calls / for the first call with this shape.
  [[nodiscard]] bool once(std::string_view key);
  [[nodiscard]] bool first_n(std::string_view key, std::uint32_t n);
  [[nodiscard]] bool first_shape(std::string_view name, std::uint64_t m, std::uint64_t n, std::uint64_t k);

  // Frees every scratch buffer, also after a failure; then throws the first error. Idempotent. Kernels and
  // gates stay.
  void release(GpuBackend& gpu);

 private:
  struct Scratch {
    DevicePtr ptr;
    std::size_t bytes = 0;
  };
  using KernelName = std::pair<std::string_view, std::string_view>;
  // Looks up by views, so that a hit allocates nothing.
  struct NameLess {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return KernelName(a.first, a.second) < KernelName(b.first, b.second);
    }
  };
  std::shared_mutex mutex_;
  std::map<std::pair<std::string, std::string>, KernelHandle, NameLess> kernels_;
  std::map<std::string, Scratch, std::less<>> scratch_;
  std::vector<DevicePtr> retired_;
  std::map<std::string, std::uint32_t, std::less<>> gates_;
};

}  // namespace metrale::gpu
