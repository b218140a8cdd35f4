// SPDX-License-Identifier: Apache-2.0
// Launches, streams, events and failures.
#include <array>

#include <metrale/base/error.h>
#include <metrale/gpu/op_cache.h>

#include "conformance/gpu_backend_conformance.h"

namespace metrale::gpu {
namespace {

namespace kernels = testing_kernels;
using testing::AllOf;
using testing::HasSubstr;

// ---- launch

TEST_P(GpuBackendConformance, ScaleMultipliesEveryElement) {
  if (!runs_kernels()) GTEST_SKIP();
  const DeviceBuffer data = upload<float>({1, 2, 3});

  launch(gpu_, kernels::kScale, gpu_.default_stream(),
         kernels::ScaleArgs{.data = data.ptr().address(), .count = 3, .factor = 2});
  gpu_.synchronize(gpu_.default_stream());

  EXPECT_EQ(read<float>(data.ptr(), 3), (std::vector<float>{2, 4, 6}));
}

TEST_P(GpuBackendConformance, BoundKernelLaunchesWithoutALookUp) {
  const BoundKernel<kernels::EmptyArgs> empty(gpu_, kernels::kEmpty);
  for (int i = 0; i < 3; ++i) empty(gpu_.default_stream(), kernels::EmptyArgs{});
  gpu_.synchronize(gpu_.default_stream());
  EXPECT_EQ(gpu_.stats().launches, 3U);
}

TEST_P(GpuBackendConformance, MissingKernelIsNamed) {
  if (!runs_kernels()) GTEST_SKIP();
  const auto look_up = [&](const char* module, const char* function) {
    return message_of<InvalidArgument>([&] { static_cast<void>(gpu_.kernel(module, function)); });
  };
  EXPECT_THAT(look_up("test_vector", "no_such"), HasSubstr("test_vector::no_such"));
  EXPECT_THAT(look_up("no_module", "scale"), HasSubstr("no_module::scale"));
  EXPECT_TRUE(gpu_.has_module("test_vector"));
  EXPECT_FALSE(gpu_.has_module("no_module"));
  EXPECT_FALSE(gpu_.has_module("test_vecto"));
}

TEST_P(GpuBackendConformance, ArgumentsOfAnotherSizeAreRefused) {
  if (!runs_kernels()) GTEST_SKIP();
  const KernelHandle scale = gpu_.kernel("test_vector", "scale");
  const std::vector<std::byte> args(sizeof(kernels::ScaleArgs) + 8);

  const std::string message = message_of<InvalidArgument>(
      [&] { gpu_.launch(scale, LaunchShape{}, gpu_.default_stream(), std::span(args)); });

  EXPECT_THAT(message, AllOf(HasSubstr("test_vector::scale"), HasSubstr("16"), HasSubstr("24")));
}

TEST_P(GpuBackendConformance, UnknownKernelHandleIsRefused) {
  const auto launch_handle = [&](KernelHandle kernel) {
    gpu_.launch(kernel, LaunchShape{}, gpu_.default_stream(), std::span<const std::byte>{});
  };
  EXPECT_THROW(launch_handle(KernelHandle{}), InvalidArgument);
  EXPECT_THROW(launch_handle(KernelHandle(std::uint64_t{9'999})), InvalidArgument);
}

TEST_P(GpuBackendConformance, ArgumentsAreCopiedAtTheCall) {
  if (!runs_kernels()) GTEST_SKIP();
  HostFlag gate(gpu_);
  const DeviceBuffer word = upload<std::uint64_t>({0});
  const StreamRef stream = gpu_.default_stream();
  launch(gpu_, kernels::kWaitOnFlag, stream, kernels::WaitOnFlagArgs{gate.address()});

  kernels::AppendArgs args{.value = word.ptr().address(), .number = 5};
  launch(gpu_, kernels::kAppend, stream, args);
  args.number = 6;
  gate.raise();
  gpu_.synchronize(stream);

  EXPECT_EQ(read<std::uint64_t>(word.ptr(), 1)[0], 5U);
}

// ---- streams

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

TEST_P(GpuBackendConformance, StreamRunsItsWorkInOrder) {
  if (!runs_kernels()) GTEST_SKIP();
  const DeviceBuffer word = upload<std::uint64_t>({0});
  const Stream stream = make_stream(gpu_);
  std::uint64_t expected = 0;

  for (std::uint64_t i = 1; i <= 1'000; ++i) {
    append(stream.ref(), word, i);
    expected = expected * 31 + i;
  }
  gpu_.synchronize(stream.ref());

  EXPECT_EQ(read<std::uint64_t>(word.ptr(), 1)[0], expected);
}

TEST_P(GpuBackendConformance, IndependentStreamsOverlap) {
  if (!runs_kernels()) GTEST_SKIP();
  HostFlag left(gpu_);
  HostFlag right(gpu_);
  const Stream one = make_stream(gpu_);
  const Stream two = make_stream(gpu_);

  launch(gpu_, kernels::kMeet, one.ref(),
         kernels::MeetArgs{.mine = left.address(), .other = right.address()});
  launch(gpu_, kernels::kMeet, two.ref(),
         kernels::MeetArgs{.mine = right.address(), .other = left.address()});
  gpu_.synchronize(one.ref());
  gpu_.synchronize(two.ref());

  EXPECT_TRUE(left.is_up() && right.is_up());
}

TEST_P(GpuBackendConformance, StreamsThatWaitKeepNobodyFromRunning) {
  if (!runs_kernels()) GTEST_SKIP();
  HostFlag gate(gpu_);
  const Stream blocked = make_stream(gpu_);
  const Event opened = make_event(gpu_);
  const DeviceBuffer word = upload<std::uint64_t>({0});
  launch(gpu_, kernels::kWaitOnFlag, blocked.ref(), kernels::WaitOnFlagArgs{gate.address()});
  gpu_.record_event(opened.ref(), blocked.ref());
  std::vector<Stream> waiting;
  for (int i = 0; i < 16; ++i) {
    waiting.push_back(make_stream(gpu_));
    gpu_.stream_wait_event(waiting.back().ref(), opened.ref());
    launch(gpu_, kernels::kEmpty, waiting.back().ref(), kernels::EmptyArgs{});
  }

  const Stream free_stream = make_stream(gpu_);
  append(free_stream.ref(), word, 1);
  gpu_.synchronize(free_stream.ref());

  EXPECT_EQ(read<std::uint64_t>(word.ptr(), 1)[0], 1U);
  gate.raise();
  for (const Stream& stream : waiting) gpu_.synchronize(stream.ref());
}

TEST_P(GpuBackendConformance, DefaultStreamCannotBeDestroyed) {
  EXPECT_FALSE(gpu_.default_stream().is_null());
  EXPECT_THROW(gpu_.destroy_stream(gpu_.default_stream()), InvalidArgument);
  EXPECT_NO_THROW(gpu_.synchronize(gpu_.default_stream()));
}

TEST_P(GpuBackendConformance, DestroyingAStreamWaitsForItsWork) {
  const DeviceBuffer buffer(gpu_, 1'000);
  const StreamRef stream = gpu_.create_stream();
  gpu_.memset_async(buffer.ptr(), 4, 1'000, stream);

  gpu_.destroy_stream(stream);

  EXPECT_EQ(read<std::uint8_t>(buffer.ptr(), 1'000), std::vector<std::uint8_t>(1'000, 4));
}

TEST_P(GpuBackendConformance, DeadStreamIsRefusedEverywhere) {
  const DeviceBuffer buffer(gpu_, 64);
  const Event event = make_event(gpu_);
  const KernelHandle empty = gpu_.kernel("test_vector", "empty");
  const kernels::EmptyArgs args{};
  std::array<std::byte, 8> host{};
  const StreamRef dead = gpu_.create_stream();
  gpu_.destroy_stream(dead);

  for (const StreamRef stream : {dead, StreamRef{}}) {
    EXPECT_THROW(gpu_.synchronize(stream), InvalidArgument);
    EXPECT_THROW(gpu_.destroy_stream(stream), InvalidArgument);
    EXPECT_THROW(gpu_.memset_async(buffer.ptr(), 0, 64, stream), InvalidArgument);
    EXPECT_THROW(gpu_.copy_h2d_async(buffer.ptr(), host, stream), InvalidArgument);
    EXPECT_THROW(gpu_.copy_h2d_async_retained(buffer.ptr(), host, stream), InvalidArgument);
    EXPECT_THROW(gpu_.copy_d2h_async(host, buffer.ptr(), stream), InvalidArgument);
    EXPECT_THROW(gpu_.copy_d2h_on_stream(host, buffer.ptr(), stream), InvalidArgument);
    EXPECT_THROW(gpu_.copy_d2d_async(buffer.ptr(), buffer.ptr().offset(32), 32, stream), InvalidArgument);
    EXPECT_THROW(gpu_.launch(empty, LaunchShape{}, stream, std::as_bytes(std::span(&args, 1))),
                 InvalidArgument);
    EXPECT_THROW(gpu_.record_event(event.ref(), stream), InvalidArgument);
    EXPECT_THROW(gpu_.stream_wait_event(stream, event.ref()), InvalidArgument);
    if (gpu_.capabilities().graphs) {
      EXPECT_THROW(gpu_.begin_capture(stream), InvalidArgument);
      EXPECT_THROW(static_cast<void>(gpu_.end_capture(stream)), InvalidArgument);
      EXPECT_THROW(static_cast<void>(gpu_.stream_is_capturing(stream)), InvalidArgument);
    }
    gpu_.abort_capture_if_active(stream);
  }
}

// ---- events

TEST_P(GpuBackendConformance, WaitOrdersOneStreamBehindAnother) {
  if (!runs_kernels()) GTEST_SKIP();
  for (int round = 0; round < 50; ++round) {
    const DeviceBuffer word = upload<std::uint64_t>({0});
    const Stream one = make_stream(gpu_);
    const Stream two = make_stream(gpu_);
    const Event event = make_event(gpu_);

    append(one.ref(), word, 1);
    append(one.ref(), word, 2);
    gpu_.record_event(event.ref(), one.ref());
    gpu_.stream_wait_event(two.ref(), event.ref());
    append(two.ref(), word, 3);
    gpu_.synchronize(two.ref());

    EXPECT_EQ(read<std::uint64_t>(word.ptr(), 1)[0], appended({1, 2, 3}));
  }
}

TEST_P(GpuBackendConformance, EventThatWasNeverRecordedIsComplete) {
  const Event event = make_event(gpu_);
  EXPECT_TRUE(gpu_.event_query(event.ref()));
  gpu_.event_synchronize(event.ref());
  gpu_.stream_wait_event(gpu_.default_stream(), event.ref());
  gpu_.synchronize(gpu_.default_stream());
}

TEST_P(GpuBackendConformance, RecordingAgainMovesTheEventButNotEarlierWaits) {
  if (!runs_kernels()) GTEST_SKIP();
  HostFlag first(gpu_);
  HostFlag second(gpu_);
  const Event event = make_event(gpu_);
  const Stream one = make_stream(gpu_);
  const Stream two = make_stream(gpu_);
  const Stream waiter = make_stream(gpu_);
  launch(gpu_, kernels::kWaitOnFlag, one.ref(), kernels::WaitOnFlagArgs{first.address()});
  gpu_.record_event(event.ref(), one.ref());
  gpu_.stream_wait_event(waiter.ref(), event.ref());
  launch(gpu_, kernels::kWaitOnFlag, two.ref(), kernels::WaitOnFlagArgs{second.address()});
  gpu_.record_event(event.ref(), two.ref());

  first.raise();
  gpu_.synchronize(waiter.ref());
  EXPECT_FALSE(gpu_.event_query(event.ref())) << "it stands for the second record now";

  second.raise();
  gpu_.event_synchronize(event.ref());
}

TEST_P(GpuBackendConformance, EventMayBeDestroyedWhileStreamsWaitForIt) {
  if (!runs_kernels()) GTEST_SKIP();
  HostFlag gate(gpu_);
  const Stream waiter = make_stream(gpu_);
  {
    const Event event = make_event(gpu_);
    launch(gpu_, kernels::kWaitOnFlag, gpu_.default_stream(), kernels::WaitOnFlagArgs{gate.address()});
    gpu_.record_event(event.ref(), gpu_.default_stream());
    gpu_.stream_wait_event(waiter.ref(), event.ref());
  }
  gate.raise();
  gpu_.synchronize(waiter.ref());
}

TEST_P(GpuBackendConformance, DeadEventIsRefused) {
  const EventRef dead = gpu_.create_event();
  gpu_.destroy_event(dead);
  for (const EventRef event : {dead, EventRef{}}) {
    EXPECT_THROW(gpu_.destroy_event(event), InvalidArgument);
    EXPECT_THROW(gpu_.record_event(event, gpu_.default_stream()), InvalidArgument);
    EXPECT_THROW(gpu_.stream_wait_event(gpu_.default_stream(), event), InvalidArgument);
    EXPECT_THROW(gpu_.event_synchronize(event), InvalidArgument);
    EXPECT_THROW(static_cast<void>(gpu_.event_query(event)), InvalidArgument);
  }
}

// ---- failures

TEST_P(GpuBackendConformance, FailureSticksToItsStream) {
  if (!isolates_failures()) GTEST_SKIP();
  const Stream stream = make_stream(gpu_);
  launch(gpu_, kernels::kFail, stream.ref(), kernels::FailArgs{7});

  const std::string first = message_of<DeviceError>([&] { gpu_.synchronize(stream.ref()); });
  launch(gpu_, kernels::kFail, stream.ref(), kernels::FailArgs{8});
  const std::string second = message_of<DeviceError>([&] { gpu_.synchronize(stream.ref()); });

  EXPECT_THAT(first, AllOf(HasSubstr("test_faults::fail"), HasSubstr("asked to fail with 7")));
  EXPECT_EQ(second, first);
}

TEST_P(GpuBackendConformance, WorkAfterAFailureIsSkipped) {
  if (!isolates_failures()) GTEST_SKIP();
  const Stream stream = make_stream(gpu_);
  const DeviceBuffer word = upload<std::uint64_t>({0});
  append(stream.ref(), word, 1);
  launch(gpu_, kernels::kFail, stream.ref(), kernels::FailArgs{7});
  append(stream.ref(), word, 2);
  gpu_.memset_async(word.ptr(), 0, 8, stream.ref());

  EXPECT_THROW(gpu_.synchronize(stream.ref()), DeviceError);
  append(stream.ref(), word, 3);
  EXPECT_THROW(gpu_.synchronize(stream.ref()), DeviceError);

  EXPECT_EQ(read<std::uint64_t>(word.ptr(), 1)[0], appended({1}));
}

TEST_P(GpuBackendConformance, OtherStreamsGoOnAfterAFailure) {
  if (!isolates_failures()) GTEST_SKIP();
  const Stream failed = make_stream(gpu_);
  const DeviceBuffer word = upload<std::uint64_t>({0});
  launch(gpu_, kernels::kFail, failed.ref(), kernels::FailArgs{7});
  EXPECT_THROW(gpu_.synchronize(failed.ref()), DeviceError);

  append(gpu_.default_stream(), word, 1);
  gpu_.synchronize(gpu_.default_stream());

  EXPECT_EQ(read<std::uint64_t>(word.ptr(), 1)[0], appended({1}));
}

TEST_P(GpuBackendConformance, FailureReachesWaitersAndTheirWaiters) {
  if (!isolates_failures()) GTEST_SKIP();
  const Stream failed = make_stream(gpu_);
  const Stream waiter = make_stream(gpu_);
  const Stream second = make_stream(gpu_);
  const Event event = make_event(gpu_);
  const Event next = make_event(gpu_);
  const DeviceBuffer word = upload<std::uint64_t>({0});

  launch(gpu_, kernels::kFail, failed.ref(), kernels::FailArgs{7});
  gpu_.record_event(event.ref(), failed.ref());
  gpu_.stream_wait_event(waiter.ref(), event.ref());
  append(waiter.ref(), word, 1);
  gpu_.record_event(next.ref(), waiter.ref());
  gpu_.stream_wait_event(second.ref(), next.ref());
  append(second.ref(), word, 2);

  EXPECT_THAT(message_of<DeviceError>([&] { gpu_.synchronize(second.ref()); }), HasSubstr("fail with 7"));
  EXPECT_THROW(gpu_.synchronize(waiter.ref()), DeviceError);
  EXPECT_THROW(gpu_.event_synchronize(event.ref()), DeviceError);
  EXPECT_THROW(static_cast<void>(gpu_.event_query(next.ref())), DeviceError);
  EXPECT_EQ(read<std::uint64_t>(word.ptr(), 1)[0], 0U);
}

TEST_P(GpuBackendConformance, EventRecordedBeforeAFailureIsFine) {
  if (!isolates_failures()) GTEST_SKIP();
  const Stream stream = make_stream(gpu_);
  const Event event = make_event(gpu_);
  gpu_.record_event(event.ref(), stream.ref());
  launch(gpu_, kernels::kFail, stream.ref(), kernels::FailArgs{7});

  EXPECT_NO_THROW(gpu_.event_synchronize(event.ref()));
  EXPECT_THROW(gpu_.synchronize(stream.ref()), DeviceError);
}

TEST_P(GpuBackendConformance, CopyToTheHostOnAFailedStreamThrows) {
  if (!isolates_failures()) GTEST_SKIP();
  const Stream stream = make_stream(gpu_);
  const DeviceBuffer word = upload<std::uint64_t>({1});
  std::array<std::byte, 8> host{};
  launch(gpu_, kernels::kFail, stream.ref(), kernels::FailArgs{7});

  EXPECT_THROW(gpu_.copy_d2h_on_stream(host, word.ptr(), stream.ref()), DeviceError);

  EXPECT_EQ(host[0], std::byte{0}) << "the copy was skipped";
}

TEST_P(GpuBackendConformance, FailedStreamIsDestroyedWithoutAComplaint) {
  if (!isolates_failures()) GTEST_SKIP();
  const StreamRef stream = gpu_.create_stream();
  launch(gpu_, kernels::kFail, stream, kernels::FailArgs{7});
  EXPECT_NO_THROW(gpu_.destroy_stream(stream));
}

}  // namespace
}  // namespace metrale::gpu
