// SPDX-License-Identifier: Apache-2.0
// The backends that need no device, bare and behind the fault decorator; CUDA runs over a driver of the
// tests.
#include <metrale/backends/cpu.h>
#include <metrale/gpu/fault.h>
#include <metrale/gpu/mock.h>

#include "conformance/gpu_backend_conformance.h"
#include "support/fake_cuda/fake_driver.h"

namespace metrale::gpu {
namespace {

std::unique_ptr<GpuBackend> make_cpu(const RigOptions& options, std::uint64_t seed) {
  return backends::make_cpu_backend({.threads = 2,
                                     .max_memory_bytes = options.max_memory_bytes,
                                     .red_zone_bytes = options.red_zone_bytes,
                                     .schedule_seed = seed},
                                    testing_kernels::cpu_kernels());
}

std::unique_ptr<GpuBackend> make_mock(const RigOptions& options) {
  MockOptions mock{.red_zone_bytes = options.red_zone_bytes};
  if (options.max_memory_bytes != 0) mock.free_memory_bytes = options.max_memory_bytes;
  return make_mock_backend(mock);
}

std::unique_ptr<GpuBackend> make_cuda_over_fake(const RigOptions& options) {
  return test::open_fake_backend(
      {.max_memory_bytes = options.max_memory_bytes, .red_zone_bytes = options.red_zone_bytes});
}

std::unique_ptr<Rig> rig_of(std::unique_ptr<GpuBackend> backend) {
  auto rig = std::make_unique<Rig>();
  rig->stack.push_back(std::move(backend));
  return rig;
}

std::unique_ptr<Rig> behind_faults(std::unique_ptr<Rig> rig) {
  rig->stack.push_back(make_fault_backend(rig->gpu()));
  return rig;
}

const auto kBackends = testing::Values(
    BackendCase{"Cpu", [](const RigOptions& o) { return rig_of(make_cpu(o, 0)); }},
    BackendCase{"CpuShuffled", [](const RigOptions& o) { return rig_of(make_cpu(o, 20'240'229)); }},
    BackendCase{"Mock", [](const RigOptions& o) { return rig_of(make_mock(o)); }},
    BackendCase{"CudaOverFake", [](const RigOptions& o) { return rig_of(make_cuda_over_fake(o)); }},
    BackendCase{"FaultOverCpu", [](const RigOptions& o) { return behind_faults(rig_of(make_cpu(o, 0))); }},
    BackendCase{"FaultOverMock", [](const RigOptions& o) { return behind_faults(rig_of(make_mock(o))); }});

std::string name_of(const testing::TestParamInfo<BackendCase>& backend) {
  return backend.param.name;
}

INSTANTIATE_TEST_SUITE_P(Backends, GpuBackendConformance, kBackends, name_of);
INSTANTIATE_TEST_SUITE_P(Backends, GpuGraphConformance, kBackends, name_of);

}  // namespace
}  // namespace metrale::gpu
