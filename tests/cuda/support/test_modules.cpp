// SPDX-License-Identifier: Apache-2.0
#include "cuda/support/test_modules.h"

#include "conformance/test_kernels_args.h"
#include "cuda/support/devices.h"

namespace metrale::kernels {

gpu::CudaModuleImages test_kernels_images();

}  // namespace metrale::kernels

namespace metrale::test {

std::shared_ptr<backends::CudaHost> cuda_host() {
  static const auto host = backends::open_cuda_host(cuda_test_device().ordinal);
  return host;
}

gpu::CudaKernelTable cuda_test_kernels() {
  using namespace testing_kernels;
  gpu::CudaKernelTable table;
  for (const char* module : {"test_vector", "test_flags", "test_faults"}) {
    table.add_module(module, kernels::test_kernels_images());
  }
  table.add(kScale);
  table.add(kAdd);
  table.add(kFill);
  table.add(kAppend);
  table.add(kWaitOnFlag);
  table.add(kMeet);
  table.add(kFail);
  table.add(kEmpty);
  return table;
}

std::span<const std::byte> cuda_test_image() {
  return kernels::test_kernels_images().portable;
}

}  // namespace metrale::test
