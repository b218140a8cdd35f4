// SPDX-License-Identifier: Apache-2.0
// Finding the driver and its devices: what is missing is named.
#include <unistd.h>

#include "backends/fake_cuda_test.h"
#include "weights/captured_log.h"

namespace metrale::test {
namespace {

using gpu::message_of;
using testing::AllOf;
using testing::HasSubstr;

struct CudaDriver : FakeCudaTest {
  // Listing and opening say the same.
  static void expect_none(const std::string& library, const testing::Matcher<std::string>& why) {
    const backends::CudaDevices found = backends::list_cuda_devices(library);
    EXPECT_TRUE(found.devices.empty());
    EXPECT_THAT(found.why_none, why);
    EXPECT_THAT(message_of<Unsupported>([&] { static_cast<void>(backends::open_cuda_host(0, library)); }),
                why);
  }
};

TEST_F(CudaDriver, EnvironmentOfTheProcessIsLeftAlone) {
  const auto variables = [] {
    std::vector<std::string> found;
    for (char** variable = environ; *variable != nullptr; ++variable) found.emplace_back(*variable);
    return found;
  };
  const std::vector<std::string> before = variables();
  static_cast<void>(open_fake_host());
  EXPECT_EQ(variables(), before);
}

TEST_F(CudaDriver, AbsentLibraryIsNamed) {
  expect_none("libno_such_driver.so.1",
              AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("libno_such_driver.so.1")));
}

TEST_F(CudaDriver, LibraryThatIsNoDriverOfCuda12IsNamed) {
  expect_none("libm.so.6", AllOf(HasSubstr("libm.so.6"), HasSubstr("older than CUDA 12")));
}

TEST_F(CudaDriver, MissingCallIsNamed) {
  fake_cuda().hide("cuGraphInstantiateWithFlags");
  expect_none(fake_cuda_library(), AllOf(HasSubstr("cuGraphInstantiateWithFlags"), HasSubstr("update it")));
}

TEST_F(CudaDriver, ReasonWhyTheDriverDoesNotStartIsGiven) {
  fake_cuda().fail_always("cuInit", kNotReady);
  expect_none(fake_cuda_library(),
              AllOf(HasSubstr("cuInit"), HasSubstr("CUDA_ERROR_SYSTEM_NOT_READY (802)")));
}

TEST_F(CudaDriver, NoDeviceIsSaid) {
  fake_cuda().set_device_count(0);
  expect_none(fake_cuda_library(), HasSubstr("sees no device"));
  fake_cuda().fail_always("cuDeviceGetCount", 100);
  expect_none(fake_cuda_library(), HasSubstr("sees no device"));
}

TEST_F(CudaDriver, FailureToCountDevicesIsNotTakenForNone) {
  fake_cuda().fail_always("cuDeviceGetCount", kNotReady);
  EXPECT_THAT(backends::list_cuda_devices(fake_cuda_library()).why_none,
              AllOf(HasSubstr("cuDeviceGetCount"), HasSubstr("CUDA_ERROR_SYSTEM_NOT_READY")));
  EXPECT_THAT(message_of<DeviceError>([] { static_cast<void>(open_fake_host()); }),
              AllOf(HasSubstr("cuDeviceGetCount"), HasSubstr("CUDA_ERROR_SYSTEM_NOT_READY")));
}

TEST_F(CudaDriver, DevicesAreDescribed) {
  fake_cuda().set_compute_capability(1, 8, 6);
  fake_cuda().set_integrated(1, 1);
  fake_cuda().set_free_bytes(0, 1'000);

  const backends::CudaDevices found = backends::list_cuda_devices(fake_cuda_library());

  ASSERT_EQ(found.devices.size(), 2U);
  EXPECT_EQ(found.driver_version, 13000);
  EXPECT_EQ(found.devices[0].name, "Fake GPU 0");
  EXPECT_EQ(found.devices[0].free_memory_bytes, 1'000U);
  EXPECT_FALSE(found.devices[0].integrated);
  EXPECT_EQ(found.devices[1].ordinal, 1);
  EXPECT_EQ(found.devices[1].compute_major, 8);
  EXPECT_EQ(found.devices[1].compute_minor, 6);
  EXPECT_EQ(found.devices[1].sm_count, 4U);
  EXPECT_EQ(found.devices[1].total_memory_bytes, std::uint64_t{1} << 30);
  EXPECT_TRUE(found.devices[1].integrated);
}

TEST_F(CudaDriver, DeviceThatCannotBeOpenedIsListedWithItsReasonInTheLog) {
  fake_cuda().fail("cuDevicePrimaryCtxRetain", 1, kNotReady);
  CapturedLog log;

  const backends::CudaDevices found = backends::list_cuda_devices(fake_cuda_library());

  ASSERT_EQ(found.devices.size(), 2U);
  EXPECT_EQ(found.devices[0].free_memory_bytes, 0U);
  EXPECT_GT(found.devices[1].free_memory_bytes, 0U);
  EXPECT_THAT(log.lines(),
              testing::ElementsAre(AllOf(HasSubstr("cuda:0"), HasSubstr("cuDevicePrimaryCtxRetain"))));
}

TEST_F(CudaDriver, AbsentDeviceNamesThoseThatAreThere) {
  EXPECT_THAT(message_of<Unsupported>([] { static_cast<void>(open_fake_host(2)); }),
              AllOf(HasSubstr("cuda:2"), HasSubstr("cuda:0 to cuda:1")));
  EXPECT_THROW(static_cast<void>(open_fake_host(-1)), Unsupported);
}

}  // namespace
}  // namespace metrale::test
