// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda/fake_driver.h"

#include <dlfcn.h>
#include <stdexcept>
#include <string_view>

#include "conformance/test_kernels_args.h"

namespace metrale::test {
namespace {

constexpr std::string_view kImage = R"(fake module
function scale
function add_from_device_counter
function fill
function append
function wait_on_flag
function meet
function fail
function write_nowhere
function empty
function foreign_sum
variable foreign_offset 4
variable metrale_device_fault 8
)";

}  // namespace

const std::string& fake_cuda_library() {
  static const std::string path = METRALE_FAKE_CUDA;
  return path;
}

const FakeCudaKnobs& fake_cuda() {
  static const FakeCudaKnobs* const knobs = [] {
    void* const library = ::dlopen(fake_cuda_library().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    using Knobs = const FakeCudaKnobs* (*)();
    return reinterpret_cast<Knobs>(::dlsym(library, "fake_cuda_knobs"))();
  }();
  return *knobs;
}

FakeCudaLive fake_cuda_live() {
  FakeCudaLive live{};
  fake_cuda().live(&live);
  return live;
}

gpu::CudaKernelTable fake_cuda_kernels() {
  using namespace testing_kernels;
  gpu::CudaKernelTable table;
  for (const char* module : {"test_vector", "test_flags", "test_faults"}) {
    table.add_module(module, {.portable = fake_cuda_image(), .sm90a = {}});
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

std::span<const std::byte> fake_cuda_image() {
  return std::as_bytes(std::span(kImage));
}

std::shared_ptr<backends::CudaHost> open_fake_host(int ordinal) {
  static_cast<void>(fake_cuda());  // keeps the library, and so its state
  return backends::open_cuda_host(ordinal, fake_cuda_library());
}

std::unique_ptr<gpu::GpuBackend> open_fake_backend(const backends::CudaBackendOptions& options) {
  return backends::make_cuda_backend(open_fake_host(), options, fake_cuda_kernels());
}

}  // namespace metrale::test
