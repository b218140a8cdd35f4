// SPDX-License-Identifier: Apache-2.0
// CpuKernelTable: the CPU bodies of kernels, by module and function. Filled explicitly at the composition
// root and injected into the CPU backend (no static-initialiser magic).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <metrale/base/thread_pool.h>
#include <metrale/gpu/kernel_id.h>

namespace metrale::gpu {

// Runs on a worker of the backend's pool; splits its loops with pool.parallel_for. A throw fails the stream.
using CpuKernelBody = void (*)(ThreadPool& pool, const void* args);

class CpuKernelTable {
 public:
  struct Entry {
    CpuKernelBody body = nullptr;
    std::size_t args_bytes = 0;
  };

  // `Body` is `void body(ThreadPool&, const Args&)`. Throws InvalidArgument for a name that is taken.
  template <auto Body, class Args>
  void add(const KernelId<Args>& id) {
    insert(id.module, id.function,
           {[](ThreadPool& pool, const void* args) { Body(pool, *static_cast<const Args*>(args)); },
            sizeof(Args)});
  }

  [[nodiscard]] const Entry* find(std::string_view module, std::string_view function) const;
  [[nodiscard]] bool has_module(std::string_view module) const;
  [[nodiscard]] const std::map<std::pair<std::string, std::string>, Entry>& entries() const {
    return entries_;
  }

 private:
  void insert(std::string_view module, std::string_view function, Entry entry);

  std::map<std::pair<std::string, std::string>, Entry> entries_;
};

}  // namespace metrale::gpu
