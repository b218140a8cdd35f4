// SPDX-License-Identifier: Apache-2.0
#include "conformance/gpu_backend_conformance.h"

#include <metrale/base/error.h>

namespace metrale::gpu {
namespace {

namespace kernels = testing_kernels;

TEST_P(GpuBackendConformance, BytesComeBackFromTheDevice) {
  const std::vector<std::uint32_t> sent{1, 2, 3, 4};

  const DeviceBuffer buffer = upload(sent);

  EXPECT_EQ(read<std::uint32_t>(buffer.ptr(), 4), sent);
}

TEST_P(GpuBackendConformance, ScaleMultipliesEveryElement) {
  if (!runs_kernels()) GTEST_SKIP();
  const DeviceBuffer data = upload<float>({1, 2, 3});

  launch(gpu_, kernels::kScale, gpu_.default_stream(),
         kernels::ScaleArgs{.data = data.ptr().address(), .count = 3, .factor = 2});
  gpu_.synchronize(gpu_.default_stream());

  EXPECT_EQ(read<float>(data.ptr(), 3), (std::vector<float>{2, 4, 6}));
}

TEST_P(GpuBackendConformance, LaunchReturnsWhileTheKernelWaitsForTheHost) {
  if (!runs_kernels()) GTEST_SKIP();
  HostFlag flag(gpu_);
  const Event passed = make_event(gpu_);

  launch(gpu_, kernels::kWaitOnFlag, gpu_.default_stream(), kernels::WaitOnFlagArgs{flag.address()});
  gpu_.record_event(passed.ref(), gpu_.default_stream());
  EXPECT_FALSE(gpu_.event_query(passed.ref()));

  flag.raise();
  gpu_.event_synchronize(passed.ref());
  EXPECT_TRUE(gpu_.event_query(passed.ref()));
}

TEST_P(GpuBackendConformance, FailureSticksToItsStream) {
  if (!runs_kernels()) GTEST_SKIP();
  const Stream stream = make_stream(gpu_);

  launch(gpu_, kernels::kFail, stream.ref(), kernels::FailArgs{7});

  EXPECT_THROW(gpu_.synchronize(stream.ref()), DeviceError);
  EXPECT_THROW(gpu_.synchronize(stream.ref()), DeviceError);
}

}  // namespace
}  // namespace metrale::gpu
