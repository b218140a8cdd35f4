// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend has beside the interface's contract: modules from outside, launch errors, faults that
// kernels report, several backends on a device.
#include <array>
#include <fstream>
#include <memory>
#include <string>
#include <support/temp_dir.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/backends/cuda.h>
#include <metrale/base/error.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/kernel.h>
#include <metrale/gpu/stream.h>

#include "conformance/test_kernels.h"
#include "cuda/support/devices.h"
#include "cuda/support/test_modules.h"

namespace metrale::test {
namespace {

namespace kernels = testing_kernels;
using testing::AllOf;
using testing::HasSubstr;

std::unique_ptr<gpu::GpuBackend> open_test_backend(const backends::CudaBackendOptions& options = {}) {
  return backends::make_cuda_backend(cuda_host(), options, cuda_test_kernels());
}

template <class Expected>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 factor = 5;
.visible .entry times_factor(.param .u64 out, .param .u32 value) {
  .reg .u64 %address;
  .reg .u32 %a, %b;
  ld.param.u64 %address, [out];
  ld.param.u32 %a, [value];
  ld.global.u32 %b, [factor];
  mul.lo.u32 %a, %a, %b;
  st.global.u32 [%address], %a;
  ret;
}
)";

std::span<const std::byte> ptx_bytes() {
  return std::as_bytes(std::span(kPtx, sizeof(kPtx) - 1));
}

std::uint32_t launch_times_factor(gpu::GpuBackend& gpu, const char* module, std::uint32_t value) {
  const gpu::DeviceBuffer out(gpu, sizeof(std::uint32_t));
  const std::array<gpu::KernelArg, 2> args{gpu::KernelArg(out.ptr()),
                                           gpu::KernelArg(std::as_bytes(std::span(&value, 1)))};
  gpu.launch_raw(gpu.kernel(module, "times_factor"), {.grid = {}, .block = {}}, gpu.default_stream(), args);
  gpu.synchronize(gpu.default_stream());
  std::uint32_t result = 0;
  gpu.copy_d2h_blocking(std::as_writable_bytes(std::span(&result, 1)), out.ptr());
  return result;
}

// ---- modules from outside

TEST(CudaModules, PtxTextFromBytesAndFromAFileRuns) {
  const auto gpu = open_test_backend();
  const TempDir dir;
  const std::string path = dir.path() + "/times.ptx";
  std::ofstream(path) << kPtx;

  gpu->load_module("from_bytes", ptx_bytes());
  gpu->load_module_file("from_file", path);

  EXPECT_EQ(launch_times_factor(*gpu, "from_bytes", 7), 35U);
  EXPECT_EQ(launch_times_factor(*gpu, "from_file", 8), 40U);
  EXPECT_TRUE(gpu->has_module("from_file"));
}

TEST(CudaModules, VariablesOfAModuleAreReadAndWritten) {
  const auto gpu = open_test_backend();
  gpu->load_module("times", ptx_bytes());
  const gpu::DeviceRange factor = gpu->device_symbol("times", "factor");
  ASSERT_EQ(factor.bytes, 4U);
  std::uint32_t value = 0;

  gpu->copy_d2h_blocking(std::as_writable_bytes(std::span(&value, 1)), factor.ptr);
  EXPECT_EQ(value, 5U);
  value = 11;
  gpu->copy_h2d_blocking(factor.ptr, std::as_bytes(std::span(&value, 1)));

  EXPECT_EQ(launch_times_factor(*gpu, "times", 3), 33U);
  EXPECT_THAT(message_of<InvalidArgument>([&] { static_cast<void>(gpu->device_symbol("times", "nothing")); }),
              AllOf(HasSubstr("times"), HasSubstr("nothing"), HasSubstr("CUDA_ERROR_NOT_FOUND")));
}

TEST(CudaModules, FatBinaryTakesAListOfArgumentsAndMoreSharedMemoryThanIsGivenUnasked) {
  const auto gpu = open_test_backend();
  gpu->load_module("foreign", cuda_test_image());
  constexpr std::uint32_t kCount = 15'000;  // 60,000 bytes
  const std::vector<int> ones(kCount, 1);
  const gpu::DeviceBuffer in(*gpu, kCount * sizeof(int));
  const gpu::DeviceBuffer out(*gpu, sizeof(int));
  gpu->copy_h2d_blocking(in.ptr(), std::as_bytes(std::span(ones)));
  const int count = kCount;
  const unsigned char scale = 2;

  const std::array<gpu::KernelArg, 4> args{gpu::KernelArg(out.ptr()), gpu::KernelArg(in.ptr()),
                                           gpu::KernelArg(std::as_bytes(std::span(&count, 1))),
                                           gpu::KernelArg(std::as_bytes(std::span(&scale, 1)))};
  gpu->launch_raw(gpu->kernel("foreign", "foreign_sum"),
                  {.grid = {}, .block = {128}, .shared_bytes = kCount * sizeof(int)}, gpu->default_stream(),
                  args);
  gpu->synchronize(gpu->default_stream());

  int sum = 0;
  gpu->copy_d2h_blocking(std::as_writable_bytes(std::span(&sum, 1)), out.ptr());
  EXPECT_EQ(sum, 2 * count + 3);
}

TEST(CudaModules, BadImagesAreRefusedWithTheReason) {
  const auto gpu = open_test_backend();
  const TempDir dir;
  const std::string path = dir.path() + "/bad.ptx";
  std::ofstream(path) << ".version 7.0\n.target sm_70\n.address_size 64\nnonsense\n";

  EXPECT_THAT(message_of<InvalidArgument>([&] { gpu->load_module_file("bad", path); }),
              AllOf(HasSubstr("bad.ptx"), HasSubstr("CUDA_ERROR_INVALID_PTX"), HasSubstr("line 4")));
  EXPECT_THROW(gpu->load_module_file("bad", dir.path() + "/absent"), IoError);
  EXPECT_THROW(gpu->load_module("bad", {}), InvalidArgument);
  EXPECT_FALSE(gpu->has_module("bad"));
  gpu->load_module("good", ptx_bytes());
  EXPECT_THAT(message_of<InvalidArgument>([&] { gpu->load_module("good", ptx_bytes()); }),
              HasSubstr("already"));
}

TEST(CudaModules, KernelsFromOutsideAreLaunchedRawOnly) {
  const auto gpu = open_test_backend();
  gpu->load_module("times", ptx_bytes());
  const std::array<std::byte, 16> args{};
  EXPECT_THROW(gpu->launch(gpu->kernel("times", "times_factor"), {}, gpu->default_stream(), std::span(args)),
               InvalidArgument);
}

TEST(CudaModules, ListsThatAreNotWhatAKernelTakesAreRefused) {
  if (backends::list_cuda_devices(backends::kCudaDriverLibrary, false).driver_version < 12040) {
    GTEST_SKIP() << "the driver does not tell";
  }
  const auto gpu = open_test_backend();
  gpu->load_module("times", ptx_bytes());
  const std::uint64_t wide = 1;
  const gpu::DeviceBuffer out(*gpu, 8);
  const std::array<gpu::KernelArg, 2> args{gpu::KernelArg(out.ptr()),
                                           gpu::KernelArg(std::as_bytes(std::span(&wide, 1)))};
  const auto launch = [&](std::span<const gpu::KernelArg> list) {
    gpu->launch_raw(gpu->kernel("times", "times_factor"), {}, gpu->default_stream(), list);
  };

  EXPECT_THAT(message_of<InvalidArgument>([&] { launch(args); }),
              AllOf(HasSubstr("argument 1"), HasSubstr("times::times_factor"), HasSubstr("4 bytes")));
  EXPECT_THAT(message_of<InvalidArgument>([&] { launch(std::span(args).first(1)); }),
              HasSubstr("2 argument"));
  EXPECT_EQ(launch_times_factor(*gpu, "times", 7), 35U);
}

// ---- launch errors

TEST(CudaLaunchErrors, NameKernelShapeAndResultAndCostNothingElse) {
  const auto gpu = open_test_backend();
  const gpu::KernelHandle empty = gpu->kernel("test_vector", "empty");
  const kernels::EmptyArgs args{};
  const auto launch = [&](const gpu::LaunchShape& shape) {
    gpu->launch(empty, shape, gpu->default_stream(), std::as_bytes(std::span(&args, 1)));
  };

  EXPECT_THAT(message_of<DeviceError>([&] { launch({.grid = {3}, .block = {2048}}); }),
              AllOf(HasSubstr("test_vector::empty"), HasSubstr("3x1x1"), HasSubstr("2048x1x1"),
                    HasSubstr("0 bytes of shared memory"), HasSubstr("CUDA_ERROR_INVALID_VALUE")));
  EXPECT_THAT(
      message_of<DeviceError>([&] { launch({.grid = {5, 4}, .block = {32, 2}, .shared_bytes = 1U << 20}); }),
      AllOf(HasSubstr("test_vector::empty"), HasSubstr("5x4x1"), HasSubstr("32x2x1"),
            HasSubstr("1048576 bytes of shared memory"), HasSubstr("CUDA_ERROR_INVALID_VALUE")));

  launch({.grid = {}, .block = {32}});
  EXPECT_NO_THROW(gpu->synchronize(gpu->default_stream()));
}

TEST(CudaLaunchErrors, EmptyGridLaunchesNothing) {
  const auto gpu = open_test_backend();
  const kernels::EmptyArgs args{};
  gpu->launch(gpu->kernel("test_vector", "empty"), {.grid = {0}, .block = {32}}, gpu->default_stream(),
              std::as_bytes(std::span(&args, 1)));
  EXPECT_NO_THROW(gpu->synchronize(gpu->default_stream()));
}

TEST(CudaLaunchErrors, LackOfMemoryLeavesTheBackendUsable) {
  const auto gpu = open_test_backend();
  EXPECT_THROW(static_cast<void>(gpu->alloc(gpu->total_memory_bytes() + 1)), OutOfMemory);
  const gpu::DeviceBuffer buffer(*gpu, 1 << 20);
  EXPECT_NO_THROW(gpu->memset_blocking(buffer.ptr(), 1, 1 << 20));
}

// ---- faults that kernels report

TEST(CudaFaults, ReportReachesTheHostAndSticksToItsBackendOnly) {
  const auto gpu = open_test_backend();
  const auto other = open_test_backend();
  launch(*gpu, kernels::kFail, gpu->default_stream(), kernels::FailArgs{7});

  EXPECT_THAT(message_of<DeviceError>([&] { gpu->synchronize(gpu->default_stream()); }),
              HasSubstr("asked to fail with 7"));
  launch(*gpu, kernels::kFail, gpu->default_stream(), kernels::FailArgs{8});
  try {
    gpu->synchronize(gpu->default_stream());
    ADD_FAILURE() << "the failure is gone";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("fail with 7")) << "the first report stays";
    EXPECT_FALSE(error.context_lost());
  }
  EXPECT_NO_THROW(other->synchronize(other->default_stream()));
}

TEST(CudaFaults, EventsAndCopiesThrowItToo) {
  const auto gpu = open_test_backend();
  const gpu::Event event = gpu::make_event(*gpu);
  const gpu::DeviceBuffer word(*gpu, 8);
  std::array<std::byte, 8> host{};
  launch(*gpu, kernels::kFail, gpu->default_stream(), kernels::FailArgs{7});
  gpu->record_event(event.ref(), gpu->default_stream());

  EXPECT_THROW(gpu->event_synchronize(event.ref()), DeviceError);
  EXPECT_THROW(static_cast<void>(gpu->event_query(event.ref())), DeviceError);
  EXPECT_THROW(gpu->copy_d2h_on_stream(host, word.ptr(), gpu->default_stream()), DeviceError);
}

TEST(CudaFaults, SynchronisedLaunchesFailAtTheCall) {
  const auto gpu = open_test_backend({.synchronize_launches = true});
  EXPECT_THROW(launch(*gpu, kernels::kFail, gpu->default_stream(), kernels::FailArgs{7}), DeviceError);
}

// ---- several backends and threads

TEST(CudaHosts, BackendsOfADeviceShareItsDefaultStreamAndSeeEachOthersMemory) {
  const auto one = open_test_backend();
  const auto two = open_test_backend();
  const gpu::DeviceBuffer word(*one, 8);
  one->memset_blocking(word.ptr(), 0, 8);

  launch(*one, kernels::kAppend, one->default_stream(),
         kernels::AppendArgs{.value = word.ptr().address(), .number = 1});
  launch(*two, kernels::kAppend, two->default_stream(),
         kernels::AppendArgs{.value = word.ptr().address(), .number = 2});
  two->synchronize(two->default_stream());

  std::uint64_t value = 0;
  one->copy_d2h_blocking(std::as_writable_bytes(std::span(&value, 1)), word.ptr());
  EXPECT_EQ(value, 33U);
  EXPECT_EQ(two->live_alloc_count(), 0U) << "ledgers are apart";
}

TEST(CudaHosts, AFreshThreadNeedsNoContextOfItsOwn) {
  const auto gpu = open_test_backend();
  std::thread([&] {
    const gpu::DeviceBuffer buffer(*gpu, 64);
    gpu->memset_blocking(buffer.ptr(), 3, 64);
    gpu->bind_to_thread();
    gpu->memset_blocking(buffer.ptr(), 4, 64);
  }).join();
  EXPECT_EQ(gpu->live_alloc_count(), 0U);
}

TEST(CudaHosts, OpeningAndClosingLeavesDeviceMemoryAsItWas) {
  const auto cycle = [] {
    const auto gpu = open_test_backend();
    const gpu::DeviceBuffer buffer(*gpu, 64 << 20);
    const gpu::Stream stream = gpu::make_stream(*gpu);
    gpu->memset_async(buffer.ptr(), 1, 64 << 20, stream.ref());
    gpu->synchronize(stream.ref());
  };
  const auto watcher = open_test_backend();
  for (int i = 0; i < 10; ++i) cycle();
  const std::uint64_t before = watcher->device_free_memory_bytes();
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_EQ(watcher->device_free_memory_bytes(), before);
}

TEST(CudaHosts, DevicesAreListedAndAnAbsentOneIsNamed) {
  const backends::CudaDevices found = backends::list_cuda_devices();
  ASSERT_FALSE(found.devices.empty());
  EXPECT_EQ(found.why_none, "");
  EXPECT_FALSE(found.devices[0].name.empty());
  EXPECT_GT(found.devices[0].free_memory_bytes, 0U);
  EXPECT_THAT(message_of<Unsupported>([] { static_cast<void>(backends::open_cuda_host(999)); }),
              AllOf(HasSubstr("cuda:999"), HasSubstr("cuda:0")));
}

TEST(CudaHosts, PinnedMemoryOfSomebodyElseIsNotStagedAndOrdinaryMemoryIs) {
  const auto gpu = open_test_backend();
  const auto other = open_test_backend();
  const gpu::PinnedBuffer pinned(*other, 1 << 20);
  const gpu::DeviceBuffer buffer(*gpu, 1 << 20);
  pinned.data()[77] = std::byte{5};

  gpu->copy_h2d_async_retained(buffer.ptr(), pinned.span(), gpu->default_stream());
  std::vector<std::byte> back(1 << 20);
  gpu->copy_d2h_on_stream(back, buffer.ptr(), gpu->default_stream());

  EXPECT_EQ(back[77], std::byte{5});
}

}  // namespace
}  // namespace metrale::test
