// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <functional>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/fault.h>
#include <metrale/gpu/mock.h>

namespace metrale::gpu {
namespace {

class FaultBackendTest : public testing::Test {
 protected:
  std::unique_ptr<MockBackend> mock_ = make_mock_backend();
  std::unique_ptr<FaultBackend> faults_ = make_fault_backend(*mock_);
};

TEST_F(FaultBackendTest, NthCallOfItsKindFailsOnce) {
  faults_->fail_nth(FaultPoint::kAlloc, 2);

  const DevicePtr first = faults_->alloc(16);
  EXPECT_THROW(static_cast<void>(faults_->alloc(16)), OutOfMemory);
  const DevicePtr third = faults_->alloc_arena(16);

  EXPECT_EQ(faults_->calls(FaultPoint::kAlloc), 3U);
  EXPECT_EQ(mock_->live_alloc_count(), 1U);
  faults_->free(first);
  faults_->free_arena(third);
}

TEST_F(FaultBackendTest, KindsCountApart) {
  faults_->fail_nth(FaultPoint::kCopy, 1);

  const DevicePtr ptr = faults_->alloc(16);
  EXPECT_THROW(faults_->memset_blocking(ptr, 0, 16), DeviceError);

  EXPECT_EQ(faults_->calls(FaultPoint::kFree), 0U);
  faults_->free(ptr);
  EXPECT_EQ(faults_->calls(FaultPoint::kFree), 1U);
}

TEST_F(FaultBackendTest, FailedFreeHasFreed) {
  const DevicePtr ptr = faults_->alloc(16);
  faults_->fail_nth(FaultPoint::kFree, 1);

  EXPECT_THROW(faults_->free(ptr), DeviceError);

  EXPECT_EQ(mock_->live_alloc_count(), 0U);
}

TEST_F(FaultBackendTest, FailedLaunchEnqueuesNothing) {
  const KernelHandle kernel = faults_->kernel("a", "b");
  faults_->fail_nth(FaultPoint::kLaunch, 1);

  EXPECT_THROW(faults_->launch(kernel, {}, faults_->default_stream(), {}), DeviceError);

  EXPECT_TRUE(mock_->launches().empty());
}

TEST_F(FaultBackendTest, ZeroDisarms) {
  faults_->fail_nth(FaultPoint::kAlloc, 1);
  faults_->fail_nth(FaultPoint::kAlloc, 0);

  const DevicePtr ptr = faults_->alloc(16);
  faults_->free(ptr);
}

TEST_F(FaultBackendTest, EveryPointFailsTheCallsOfItsKind) {
  const DevicePtr ptr = faults_->alloc(64);
  const StreamRef stream = faults_->default_stream();
  const EventRef event = faults_->create_event();
  std::array<std::byte, 16> host{};
  const auto fails = [&](FaultPoint point, const std::function<void()>& call) {
    faults_->fail_nth(point, 1);
    EXPECT_THROW(call(), Error) << static_cast<int>(point);
    faults_->fail_nth(point, 0);
  };

  fails(FaultPoint::kAlloc, [&] { static_cast<void>(faults_->alloc_arena(1)); });
  fails(FaultPoint::kAllocPinned, [&] { static_cast<void>(faults_->alloc_pinned(1)); });
  fails(FaultPoint::kCopy, [&] { faults_->copy_h2d_blocking(ptr, host); });
  fails(FaultPoint::kCopy, [&] { faults_->copy_d2h_blocking(host, ptr); });
  fails(FaultPoint::kCopy, [&] { faults_->copy_d2d_blocking(ptr, ptr.offset(16), 16); });
  fails(FaultPoint::kCopy, [&] { faults_->copy_h2d_async(ptr, host, stream); });
  fails(FaultPoint::kCopy, [&] { faults_->copy_h2d_async_retained(ptr, host, stream); });
  fails(FaultPoint::kCopy, [&] { faults_->copy_d2h_async(host, ptr, stream); });
  fails(FaultPoint::kCopy, [&] { faults_->copy_d2h_on_stream(host, ptr, stream); });
  fails(FaultPoint::kCopy, [&] { faults_->copy_d2d_async(ptr, ptr.offset(16), 16, stream); });
  fails(FaultPoint::kCopy, [&] { faults_->copy_d2d_2d_async(ptr, 4, ptr.offset(32), 4, 4, 2, stream); });
  fails(FaultPoint::kCopy, [&] { faults_->memset_async(ptr, 0, 16, stream); });
  fails(FaultPoint::kStream, [&] { static_cast<void>(faults_->create_stream()); });
  fails(FaultPoint::kStream, [&] { static_cast<void>(faults_->create_event()); });
  fails(FaultPoint::kStream, [&] { faults_->begin_capture(stream); });
  fails(FaultPoint::kSynchronize, [&] { faults_->synchronize(stream); });
  fails(FaultPoint::kSynchronize, [&] { faults_->event_synchronize(event); });
  fails(FaultPoint::kLaunch, [&] { faults_->launch_raw(faults_->kernel("a", "b"), {}, stream, {}); });
  faults_->free(ptr);
}

}  // namespace
}  // namespace metrale::gpu
