// SPDX-License-Identifier: Apache-2.0
// The list of devices says what can be opened, and why the rest cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/cuda_kernels.h>
#include <metrale/runtime/runtime.h>

#include "support/fake_cuda/fake_driver.h"
#include "weights/captured_log.h"

namespace metrale::runtime {
namespace {

using testing::HasSubstr;

BackendOptions with_driver(const std::string& library) {
  test::fake_cuda().reset();
  BackendOptions options;
  options.threads = 1;
  options.cuda_driver = library;
  return options;
}

TEST(Devices, ProcessorIsFirstAndUsable) {
  const auto devices = list_devices(with_driver("libno_such_driver.so.1"));
  EXPECT_EQ(devices.front().name, "cpu");
  EXPECT_EQ(devices.front().unavailable, "");
}

TEST(Devices, ReasonForHavingNoCudaDeviceIsGiven) {
  const auto without_driver = list_devices(with_driver("libno_such_driver.so.1"));
  ASSERT_EQ(without_driver.size(), 2U);
  EXPECT_EQ(without_driver[1].name, "cuda");
  EXPECT_THAT(without_driver[1].unavailable, HasSubstr("libno_such_driver.so.1"));

  const BackendOptions options = with_driver(test::fake_cuda_library());
  test::fake_cuda().fail_always("cuInit", 802);
  EXPECT_THAT(list_devices(options)[1].unavailable, HasSubstr("CUDA_ERROR_SYSTEM_NOT_READY"));
}

TEST(Devices, CudaDevicesAreListedWithTheirMemory) {
  const BackendOptions options = with_driver(test::fake_cuda_library());
  test::fake_cuda().set_free_bytes(1, 1'000);
  test::fake_cuda().set_integrated(1, 1);

  const auto devices = list_devices(options);

  ASSERT_EQ(devices.size(), 3U);
  EXPECT_EQ(devices[1].name, "cuda:0");
  EXPECT_THAT(devices[1].description, HasSubstr("Fake GPU 0, compute capability 9.0, 4 multiprocessors"));
  EXPECT_EQ(devices[2].name, "cuda:1");
  EXPECT_EQ(devices[2].free_memory_bytes, 1'000U);
  EXPECT_THAT(devices[2].description, HasSubstr("shared with the host"));
  EXPECT_EQ(devices[2].unavailable.empty(), kernels::has_cuda_kernels());
}

TEST(Devices, DeviceThatTheKernelsDoNotServeIsListedWithTheReasonAndNotChosen) {
  BackendOptions options = with_driver(test::fake_cuda_library());
  for (const int device : {0, 1}) test::fake_cuda().set_compute_capability(device, 7, 5);

  const std::string reason = list_devices(options)[1].unavailable;
  EXPECT_THAT(reason, HasSubstr(kernels::has_cuda_kernels() ? "compute capability is 7.5" : "without nvcc"));
  options.device = "auto";
  EXPECT_EQ(open_backend(options)->name(), "cpu");
  options.device = "cuda:0";
  EXPECT_THROW(static_cast<void>(open_backend(options)), Unsupported);
}

TEST(Devices, BackendsOfOneDeviceShareItsHost) {
  if (!kernels::has_cuda_kernels()) GTEST_SKIP() << "this build has no CUDA kernels";
  BackendOptions options = with_driver(test::fake_cuda_library());
  options.device = "cuda:1";
  {
    const auto one = open_backend(options);
    const int streams = test::fake_cuda_live().streams;
    const auto two = open_backend(options);
    EXPECT_EQ(test::fake_cuda_live().streams, streams + 1) << "a stream for its copies and no default stream";
    EXPECT_EQ(test::fake_cuda_live().contexts, 1);
    test::fake_cuda().lose_context(1);
    EXPECT_THROW(one->synchronize(one->default_stream()), DeviceError);
    test::fake_cuda().forget_calls();
    EXPECT_THROW(static_cast<void>(two->alloc(64)), DeviceError);
    EXPECT_EQ(test::fake_cuda().calls(nullptr), 0) << "it knows";
  }
  EXPECT_EQ(test::fake_cuda_live().contexts, 0);
  test::fake_cuda().reset();
  const auto again = open_backend(options);
  EXPECT_NO_THROW(again->free(again->alloc(64)));
}

TEST(Devices, AutomaticChoiceSaysWhyADeviceIsLeftOut) {
  BackendOptions options = with_driver(test::fake_cuda_library());
  options.device = "auto";
  for (const int device : {0, 1}) test::fake_cuda().set_compute_capability(device, 7, 5);
  CapturedLog log;
  EXPECT_EQ(open_backend(options)->name(), "cpu");
  EXPECT_THAT(log.lines(), testing::ElementsAre(HasSubstr("cuda:0 is left out: "), HasSubstr("cuda:1 is")));
}

TEST(Devices, AutomaticChoiceTriesTheOtherDevicesBeforeTheProcessor) {
  if (!kernels::has_cuda_kernels()) GTEST_SKIP() << "this build has no CUDA kernels";
  constexpr int kOutOfMemory = 2;
  constexpr int kNotReady = 802;
  for (const auto& [call, result] :
       {std::pair{"cuMemHostAlloc", kOutOfMemory}, std::pair{"cuDevicePrimaryCtxRetain", kNotReady}}) {
    BackendOptions options = with_driver(test::fake_cuda_library());
    options.device = "auto";
    test::fake_cuda().set_free_bytes(1, 1'000);
    test::fake_cuda().fail(call, 1, result);
    CapturedLog log;
    const auto gpu = open_backend(options);
    ASSERT_EQ(gpu->name(), "cuda") << call;
    EXPECT_EQ(gpu->device_free_memory_bytes(), 1'000U) << "it is cuda:1";
    EXPECT_THAT(log.lines(), testing::ElementsAre(HasSubstr("cuda:0 is left out: "))) << call;
  }
}

TEST(Devices, AutomaticChoiceTakesTheProcessorWhereNoDeviceHasMemory) {
  BackendOptions options = with_driver(test::fake_cuda_library());
  options.device = "auto";
  test::fake_cuda().fail_always("cuMemHostAlloc", 2);
  CapturedLog log;
  EXPECT_EQ(open_backend(options)->name(), "cpu");
  EXPECT_EQ(log.lines().size(), 2U);
}

TEST(Devices, AutomaticChoiceFallsBackToTheProcessor) {
  BackendOptions options = with_driver("libno_such_driver.so.1");
  options.device = "auto";
  EXPECT_EQ(open_backend(options)->name(), "cpu");
}

TEST(Devices, AbsentDeviceIsUnsupportedAndAnUnknownOneAMistake) {
  BackendOptions options = with_driver("libno_such_driver.so.1");
  options.device = "cuda:0";
  EXPECT_THROW(static_cast<void>(open_backend(options)), Unsupported);
  for (const char* unknown : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", ""}) {
    options.device = unknown;
    EXPECT_THROW(static_cast<void>(open_backend(options)), InvalidArgument) << unknown;
  }
}

}  // namespace
}  // namespace metrale::runtime
