// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/gpu/cuda_kernel_table.h>

namespace metrale::gpu {

void CudaKernelTable::add_module(std::string_view name, const CudaModuleImages& images) {
  if (!modules_.emplace(name, images).second) {
    throw InvalidArgument(fmt::format("the CUDA table has a module {} already", name));
  }
}

void CudaKernelTable::insert(std::string_view module, std::string_view function, Entry entry) {
  if (!entries_.emplace(Name(module, function), std::move(entry)).second) {
    throw InvalidArgument(fmt::format("the CUDA table has a kernel {}::{} already", module, function));
  }
}

}  // namespace metrale::gpu
