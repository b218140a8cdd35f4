// SPDX-License-Identifier: Apache-2.0
// The backend conformance suite on a CUDA device, bare and behind the fault decorator.
#include <metrale/backends/cuda.h>
#include <metrale/gpu/fault.h>

#include "conformance/gpu_backend_conformance.h"
#include "cuda/support/devices.h"
#include "cuda/support/test_modules.h"

namespace metrale::gpu {
namespace {

std::unique_ptr<Rig> make_cuda(const RigOptions& options) {
  auto rig = std::make_unique<Rig>();
  rig->stack.push_back(backends::make_cuda_backend(test::cuda_host(),
                                                   {.max_memory_bytes = options.max_memory_bytes,
                                                    .red_zone_bytes = options.red_zone_bytes,
                                                    .path = test::cuda_test_device().path},
                                                   test::cuda_test_kernels()));
  return rig;
}

std::unique_ptr<Rig> behind_faults(std::unique_ptr<Rig> rig) {
  rig->stack.push_back(make_fault_backend(rig->gpu()));
  return rig;
}

const auto kBackends = testing::Values(
    BackendCase{"Cuda", make_cuda},
    BackendCase{"FaultOverCuda", [](const RigOptions& o) { return behind_faults(make_cuda(o)); }});

std::string name_of(const testing::TestParamInfo<BackendCase>& backend) {
  return backend.param.name;
}

INSTANTIATE_TEST_SUITE_P(Backends, GpuBackendConformance, kBackends, name_of);
INSTANTIATE_TEST_SUITE_P(Backends, GpuGraphConformance, kBackends, name_of);

}  // namespace
}  // namespace metrale::gpu
