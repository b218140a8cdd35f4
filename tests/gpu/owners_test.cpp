// SPDX-License-Identifier: Apache-2.0
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/fault.h>
#include <metrale/gpu/mock.h>
#include <metrale/gpu/stream.h>

namespace metrale::gpu {
namespace {

static_assert(!std::is_constructible_v<StreamRef, int>, "a literal 0 must not become a stream");
static_assert(!std::is_convertible_v<std::uint64_t, StreamRef>);
static_assert(!std::is_convertible_v<StreamRef, EventRef>);
static_assert(!std::is_copy_constructible_v<DeviceBuffer> &&
              std::is_nothrow_move_constructible_v<DeviceBuffer>);
static_assert(!std::is_copy_constructible_v<Stream> && std::is_nothrow_move_assignable_v<Stream>);

TEST(DeviceBuffer, FreesAtTheEndOfItsLife) {
  const auto gpu = make_mock_backend();
  {
    const DeviceBuffer buffer(*gpu, 64);
    EXPECT_EQ(gpu->live_bytes(), 64U);
  }
  EXPECT_EQ(gpu->live_bytes(), 0U);
}

TEST(DeviceBuffer, ZeroBytesIsEmptyAndNull) {
  const auto gpu = make_mock_backend();
  DeviceBuffer buffer(*gpu, 0);
  EXPECT_TRUE(buffer.ptr().is_null());
  buffer.reset();
}

TEST(DeviceBuffer, MoveHandsTheMemoryOver) {
  const auto gpu = make_mock_backend();
  DeviceBuffer from(*gpu, 64);
  const DevicePtr ptr = from.ptr();
  DeviceBuffer to(*gpu, 32);

  to = std::move(from);

  EXPECT_EQ(to.ptr(), ptr);
  EXPECT_EQ(to.size_bytes(), 64U);
  EXPECT_EQ(gpu->live_bytes(), 64U) << "what it held before is free";
}

TEST(DeviceBuffer, ReleaseThrowsWhatResetLogsAndBothEmptyIt) {
  const auto inner = make_mock_backend();
  const auto gpu = make_fault_backend(*inner);
  DeviceBuffer buffer(*gpu, 64);
  gpu->fail_nth(FaultPoint::kFree, 1);

  EXPECT_THROW(buffer.release(), DeviceError);

  EXPECT_TRUE(buffer.ptr().is_null());
  EXPECT_EQ(buffer.size_bytes(), 0U);
  EXPECT_NO_THROW(buffer.release());
}

TEST(DeviceBuffer, CarriesTheCallSiteOfItsMaker) {
  const auto gpu = make_mock_backend();
  const DeviceBuffer buffer(*gpu, 64);
  const unsigned line = __LINE__ - 1;

  const auto report = gpu->alloc_report(1, 0);

  ASSERT_EQ(report.size(), 1U);
  EXPECT_EQ(report[0].site.line, line);
}

TEST(PinnedBuffer, FreesAtTheEndOfItsLifeAndMoves) {
  const auto gpu = make_mock_backend();
  PinnedBuffer from(*gpu, 64);
  const std::byte* const data = from.data();
  PinnedBuffer to;

  to = std::move(from);

  EXPECT_EQ(to.data(), data);
  EXPECT_EQ(from.size_bytes(), 0U);
  to.reset();
  EXPECT_THROW(static_cast<void>(gpu->device_address_of_pinned(data)), InvalidArgument);
}

TEST(OwnedHandle, DestroysWhatItOwnsAndOnlyOnce) {
  const auto gpu = make_mock_backend();
  Stream stream = make_stream(*gpu);
  const StreamRef ref = stream.ref();
  Stream moved(std::move(stream));
  EXPECT_TRUE(stream.is_empty());

  moved.reset();
  moved.reset();

  EXPECT_THROW(gpu->synchronize(ref), InvalidArgument);
}

TEST(OwnedHandle, FailureToDestroyIsLoggedNotThrown) {
  const auto gpu = make_mock_backend();
  Event event = make_event(*gpu);
  gpu->destroy_event(event.ref());

  event.reset();

  EXPECT_TRUE(event.is_empty());
}

TEST(CaptureScope, WithoutFinishLeavesNoCaptureOpen) {
  const auto gpu = make_mock_backend();
  {
    const CaptureScope capture(*gpu, gpu->default_stream());
    EXPECT_TRUE(gpu->stream_is_capturing(gpu->default_stream()));
  }
  EXPECT_FALSE(gpu->stream_is_capturing(gpu->default_stream()));
}

}  // namespace
}  // namespace metrale::gpu
