// SPDX-License-Identifier: Apache-2.0
// Captures and graphs.
#include <array>
#include <memory>
#include <thread>

#include <metrale/base/error.h>

#include "conformance/gpu_backend_conformance.h"

namespace metrale::gpu {
namespace {

namespace kernels = testing_kernels;
using testing::AllOf;
using testing::HasSubstr;

TEST_P(GpuGraphConformance, CaptureRecordsAndRunsNothing) {
  const DeviceBuffer buffer = upload<std::uint8_t>({1});

  const Graph graph = capture_fill(buffer.ptr(), 2);

  gpu_.synchronize(stream_.ref());
  EXPECT_EQ(byte_at(buffer.ptr()), 1);
  replay(graph);
  EXPECT_EQ(byte_at(buffer.ptr()), 2);
}

TEST_P(GpuGraphConformance, StreamWorksNormallyAfterItsCapture) {
  const DeviceBuffer buffer = upload<std::uint8_t>({1});
  const Graph graph = capture_fill(buffer.ptr(), 2);

  gpu_.memset_async(buffer.ptr(), 3, 1, stream_.ref());
  gpu_.synchronize(stream_.ref());

  EXPECT_EQ(byte_at(buffer.ptr()), 3);
}

TEST_P(GpuGraphConformance, DeviceDataChangedBetweenReplaysIsSeen) {
  const DeviceBuffer from = upload<std::uint8_t>({1});
  const DeviceBuffer to = upload<std::uint8_t>({0});
  CaptureScope capture(gpu_, stream_.ref());
  gpu_.copy_d2d_async(to.ptr(), from.ptr(), 1, stream_.ref());
  const Graph graph = capture.finish();

  replay(graph);
  EXPECT_EQ(byte_at(to.ptr()), 1);
  write<std::uint8_t>(from.ptr(), {2});
  replay(graph);
  EXPECT_EQ(byte_at(to.ptr()), 2);
}

TEST_P(GpuGraphConformance, KernelReadsItsCountFromTheDeviceAtEachReplay) {
  if (!runs_kernels()) GTEST_SKIP();
  const DeviceBuffer data = upload<float>({0, 0, 0});
  const DeviceBuffer count = upload<std::uint32_t>({1});
  CaptureScope capture(gpu_, stream_.ref());
  launch(gpu_, kernels::kAdd, stream_.ref(),
         kernels::AddArgs{.data = data.ptr().address(), .count = count.ptr().address(), .value = 5});
  const Graph graph = capture.finish();

  replay(graph);
  EXPECT_EQ(read<float>(data.ptr(), 3), (std::vector<float>{5, 0, 0}));
  write<std::uint32_t>(count.ptr(), {3});
  replay(graph);
  EXPECT_EQ(read<float>(data.ptr(), 3), (std::vector<float>{10, 5, 5}));
}

TEST_P(GpuGraphConformance, RetainedSourceIsReadAgainAtEachReplay) {
  const DeviceBuffer to = upload<std::uint8_t>({0});
  std::vector<std::byte> source{std::byte{1}};
  CaptureScope capture(gpu_, stream_.ref());
  gpu_.copy_h2d_async_retained(to.ptr(), source, stream_.ref());
  const Graph graph = capture.finish();

  replay(graph);
  source[0] = std::byte{2};
  replay(graph);

  EXPECT_EQ(byte_at(to.ptr()), 2);
}

TEST_P(GpuGraphConformance, EmptyGraphReplays) {
  CaptureScope capture(gpu_, stream_.ref());
  const Graph graph = capture.finish();
  replay(graph);
  EXPECT_EQ(gpu_.stats().graph_launches, 1U);
}

TEST_P(GpuGraphConformance, ReplayTakesItsTurnInTheStream) {
  if (!runs_kernels()) GTEST_SKIP();
  const DeviceBuffer word = upload<std::uint64_t>({0});
  CaptureScope capture(gpu_, stream_.ref());
  append(stream_.ref(), word, 2);
  append(stream_.ref(), word, 3);
  const Graph graph = capture.finish();
  const Event event = make_event(gpu_);
  const Stream other = make_stream(gpu_);

  append(stream_.ref(), word, 1);
  gpu_.launch_graph(graph.ref(), stream_.ref());
  gpu_.record_event(event.ref(), stream_.ref());
  gpu_.stream_wait_event(other.ref(), event.ref());
  append(other.ref(), word, 4);
  gpu_.synchronize(other.ref());

  EXPECT_EQ(read<std::uint64_t>(word.ptr(), 1)[0], appended({1, 2, 3, 4}));
}

// ---- several streams in one capture

TEST_P(GpuGraphConformance, JoinedStreamsKeepTheirOrder) {
  const Stream other = make_stream(gpu_);
  const Event fork = make_event(gpu_);
  const Event join = make_event(gpu_);
  const DeviceBuffer a = upload<std::uint8_t>({0});
  const DeviceBuffer b = upload<std::uint8_t>({0});
  const DeviceBuffer c = upload<std::uint8_t>({0});

  CaptureScope capture(gpu_, stream_.ref());
  gpu_.memset_async(a.ptr(), 7, 1, stream_.ref());
  gpu_.record_event(fork.ref(), stream_.ref());
  gpu_.stream_wait_event(other.ref(), fork.ref());
  EXPECT_TRUE(gpu_.stream_is_capturing(other.ref()));
  gpu_.copy_d2d_async(b.ptr(), a.ptr(), 1, other.ref());
  gpu_.record_event(join.ref(), other.ref());
  gpu_.stream_wait_event(stream_.ref(), join.ref());
  gpu_.copy_d2d_async(c.ptr(), b.ptr(), 1, stream_.ref());
  const Graph graph = capture.finish();
  EXPECT_FALSE(gpu_.stream_is_capturing(other.ref()));
  gpu_.synchronize(other.ref());
  EXPECT_EQ(byte_at(b.ptr()), 0) << "nothing has run";

  replay(graph);
  EXPECT_EQ(byte_at(c.ptr()), 7);
}

TEST_P(GpuGraphConformance, StreamThatWasNotJoinedBackDiscardsTheCapture) {
  const Stream other = make_stream(gpu_);
  const Event fork = make_event(gpu_);
  const DeviceBuffer buffer = upload<std::uint8_t>({0});
  gpu_.begin_capture(stream_.ref());
  gpu_.record_event(fork.ref(), stream_.ref());
  gpu_.stream_wait_event(other.ref(), fork.ref());
  gpu_.memset_async(buffer.ptr(), 7, 1, other.ref());

  EXPECT_THROW(static_cast<void>(gpu_.end_capture(stream_.ref())), InvalidArgument);

  EXPECT_FALSE(gpu_.stream_is_capturing(stream_.ref()));
  EXPECT_FALSE(gpu_.stream_is_capturing(other.ref()));
  gpu_.synchronize(other.ref());
  EXPECT_EQ(byte_at(buffer.ptr()), 0);
}

TEST_P(GpuGraphConformance, CaptureEndsOnlyWhereItBegan) {
  const Stream other = make_stream(gpu_);
  const Event fork = make_event(gpu_);
  gpu_.begin_capture(stream_.ref());
  gpu_.record_event(fork.ref(), stream_.ref());
  gpu_.stream_wait_event(other.ref(), fork.ref());

  EXPECT_THROW(static_cast<void>(gpu_.end_capture(other.ref())), InvalidArgument);

  EXPECT_FALSE(gpu_.stream_is_capturing(stream_.ref()));
  EXPECT_THROW(static_cast<void>(gpu_.end_capture(stream_.ref())), InvalidArgument);
}

TEST_P(GpuGraphConformance, TwoCapturesGoOnSideBySideAndDoNotMix) {
  const Stream other = make_stream(gpu_);
  const Event event = make_event(gpu_);
  const DeviceBuffer a = upload<std::uint8_t>({0});
  const DeviceBuffer b = upload<std::uint8_t>({0});
  CaptureScope first(gpu_, stream_.ref());
  CaptureScope second(gpu_, other.ref());
  gpu_.memset_async(a.ptr(), 1, 1, stream_.ref());
  gpu_.memset_async(b.ptr(), 2, 1, other.ref());
  gpu_.record_event(event.ref(), stream_.ref());

  EXPECT_THROW(gpu_.stream_wait_event(other.ref(), event.ref()), InvalidArgument);

  const Graph fills_b = second.finish();
  const Graph fills_a = first.finish();
  replay(fills_a);
  EXPECT_EQ(byte_at(a.ptr()), 1);
  EXPECT_EQ(byte_at(b.ptr()), 0);
  replay(fills_b);
  EXPECT_EQ(byte_at(b.ptr()), 2);
}

TEST_P(GpuGraphConformance, EventFromOutsideCannotBeWaitedForInACapture) {
  const Event outside = make_event(gpu_);
  gpu_.record_event(outside.ref(), gpu_.default_stream());
  const CaptureScope capture(gpu_, stream_.ref());

  EXPECT_THROW(gpu_.stream_wait_event(stream_.ref(), outside.ref()), InvalidArgument);

  EXPECT_TRUE(gpu_.stream_is_capturing(stream_.ref()));
}

TEST_P(GpuGraphConformance, EventOfACaptureMeansNothingOutside) {
  const Event event = make_event(gpu_);
  {
    CaptureScope capture(gpu_, stream_.ref());
    gpu_.record_event(event.ref(), stream_.ref());
    EXPECT_THROW(gpu_.event_synchronize(event.ref()), InvalidArgument);
    EXPECT_THROW(static_cast<void>(gpu_.event_query(event.ref())), InvalidArgument);
    const Graph graph = capture.finish();
  }
  EXPECT_THROW(gpu_.stream_wait_event(gpu_.default_stream(), event.ref()), InvalidArgument);
  EXPECT_THROW(gpu_.event_synchronize(event.ref()), InvalidArgument);

  gpu_.record_event(event.ref(), gpu_.default_stream());
  EXPECT_NO_THROW(gpu_.event_synchronize(event.ref())) << "recording it outside makes it good again";
}

// ---- what a capture refuses

TEST_P(GpuGraphConformance, BlockingCallsThrowAndTheCaptureGoesOn) {
  const DeviceBuffer buffer = upload<std::uint8_t>({1});
  const Graph other = capture_fill(buffer.ptr(), 9);
  std::array<std::byte, 1> host{};
  CaptureScope capture(gpu_, stream_.ref());
  gpu_.memset_async(buffer.ptr(), 2, 1, stream_.ref());

  EXPECT_THROW(gpu_.synchronize(stream_.ref()), InvalidArgument);
  EXPECT_THROW(gpu_.copy_d2h_on_stream(host, buffer.ptr(), stream_.ref()), InvalidArgument);
  EXPECT_THROW(gpu_.copy_h2d_async(buffer.ptr(), host, stream_.ref()), InvalidArgument);
  EXPECT_THROW(gpu_.begin_capture(stream_.ref()), InvalidArgument);
  EXPECT_THROW(gpu_.launch_graph(other.ref(), stream_.ref()), InvalidArgument);
  EXPECT_THROW(gpu_.destroy_stream(stream_.ref()), InvalidArgument);

  EXPECT_TRUE(gpu_.stream_is_capturing(stream_.ref()));
  const Graph graph = capture.finish();
  replay(graph);
  EXPECT_EQ(byte_at(buffer.ptr()), 2);
}

TEST_P(GpuGraphConformance, OtherStreamsRunWhileOneCaptures) {
  const DeviceBuffer buffer = upload<std::uint8_t>({1});
  const CaptureScope capture(gpu_, stream_.ref());

  gpu_.memset_async(buffer.ptr(), 2, 1, gpu_.default_stream());
  gpu_.synchronize(gpu_.default_stream());

  EXPECT_EQ(byte_at(buffer.ptr()), 2);
}

TEST_P(GpuGraphConformance, EndWithoutACaptureIsRefused) {
  EXPECT_THROW(static_cast<void>(gpu_.end_capture(stream_.ref())), InvalidArgument);
}

TEST_P(GpuGraphConformance, AbortDiscardsTheCaptureAndMayBeRepeated) {
  const DeviceBuffer buffer = upload<std::uint8_t>({1});
  gpu_.begin_capture(stream_.ref());
  gpu_.memset_async(buffer.ptr(), 2, 1, stream_.ref());

  gpu_.abort_capture_if_active(stream_.ref());
  gpu_.abort_capture_if_active(stream_.ref());

  EXPECT_FALSE(gpu_.stream_is_capturing(stream_.ref()));
  gpu_.synchronize(stream_.ref());
  EXPECT_EQ(byte_at(buffer.ptr()), 1);
  replay(capture_fill(buffer.ptr(), 3));
  EXPECT_EQ(byte_at(buffer.ptr()), 3);
}

TEST_P(GpuGraphConformance, DeadGraphIsRefused) {
  const DeviceBuffer buffer = upload<std::uint8_t>({1});
  Graph graph = capture_fill(buffer.ptr(), 2);
  const GraphRef dead = graph.ref();
  graph.reset();

  EXPECT_THROW(gpu_.launch_graph(dead, stream_.ref()), InvalidArgument);
  EXPECT_THROW(gpu_.destroy_graph(dead), InvalidArgument);
  EXPECT_THROW(gpu_.launch_graph(GraphRef{}, stream_.ref()), InvalidArgument);
}

// ---- what a graph points into

TEST_P(GpuGraphConformance, GraphOverAFreedBufferNamesTheNode) {
  const DeviceBuffer kept = upload<std::uint8_t>({1});
  DeviceBuffer freed = upload<std::uint8_t>({2});
  CaptureScope capture(gpu_, stream_.ref());
  gpu_.memset_async(kept.ptr(), 9, 1, stream_.ref());
  gpu_.copy_d2d_async(kept.ptr(), freed.ptr(), 1, stream_.ref());
  const Graph graph = capture.finish();
  replay(graph);
  write<std::uint8_t>(kept.ptr(), {1});
  freed.release();

  const std::string message =
      message_of<InvalidArgument>([&] { gpu_.launch_graph(graph.ref(), stream_.ref()); });

  EXPECT_THAT(message, AllOf(HasSubstr("node 1"), HasSubstr("copy"), HasSubstr("freed")));
  gpu_.synchronize(stream_.ref());
  EXPECT_EQ(byte_at(kept.ptr()), 1) << "no node has run";
}

TEST_P(GpuGraphConformance, FreedMemoryAllocatedAgainDoesNotReviveAGraph) {
  DeviceBuffer buffer(gpu_, 1 << 20);
  const Graph graph = capture_fill(buffer.ptr(), 2);
  buffer.release();
  std::vector<DeviceBuffer> again;
  for (int i = 0; i < 4; ++i) again.emplace_back(gpu_, 1 << 20);

  EXPECT_THROW(gpu_.launch_graph(graph.ref(), stream_.ref()), InvalidArgument);
}

TEST_P(GpuGraphConformance, BufferFreedDuringTheCaptureIsFound) {
  DeviceBuffer buffer(gpu_, 64);
  CaptureScope capture(gpu_, stream_.ref());
  gpu_.memset_async(buffer.ptr(), 1, 64, stream_.ref());
  buffer.release();
  const Graph graph = capture.finish();

  EXPECT_THROW(gpu_.launch_graph(graph.ref(), stream_.ref()), InvalidArgument);
}

TEST_P(GpuGraphConformance, KernelArgumentsAreLookedThroughForFreedBuffers) {
  DeviceBuffer word(gpu_, 64);
  CaptureScope capture(gpu_, stream_.ref());
  launch(gpu_, kernels::kAppend, stream_.ref(),
         kernels::AppendArgs{.value = word.ptr().offset(8).address(), .number = 1});
  const Graph graph = capture.finish();
  word.release();

  const std::string message =
      message_of<InvalidArgument>([&] { gpu_.launch_graph(graph.ref(), stream_.ref()); });

  EXPECT_THAT(message, HasSubstr("test_vector::append"));
}

TEST_P(GpuGraphConformance, GraphOverFreedPinnedMemoryIsRefused) {
  if (!gpu_.capabilities().pinned_device_address) GTEST_SKIP();
  PinnedBuffer pinned(gpu_, 64);
  const Graph graph = capture_fill(pinned.device_address(), 1);
  pinned.reset();
  EXPECT_THROW(gpu_.launch_graph(graph.ref(), stream_.ref()), InvalidArgument);
}

TEST_P(GpuGraphConformance, FreeingOtherMemoryDoesNotMatter) {
  const DeviceBuffer buffer = upload<std::uint8_t>({1});
  const Graph graph = capture_fill(buffer.ptr(), 2);
  {
    const DeviceBuffer unrelated(gpu_, 64);
  }
  replay(graph);
  EXPECT_EQ(byte_at(buffer.ptr()), 2);
}

TEST_P(GpuGraphConformance, FailureInAGraphNamesItsNodeAndSticks) {
  if (!isolates_failures()) GTEST_SKIP();
  const DeviceBuffer word = upload<std::uint64_t>({0});
  CaptureScope capture(gpu_, stream_.ref());
  append(stream_.ref(), word, 1);
  launch(gpu_, kernels::kFail, stream_.ref(), kernels::FailArgs{7});
  append(stream_.ref(), word, 2);
  const Graph graph = capture.finish();

  gpu_.launch_graph(graph.ref(), stream_.ref());
  const std::string message = message_of<DeviceError>([&] { gpu_.synchronize(stream_.ref()); });
  gpu_.launch_graph(graph.ref(), stream_.ref());

  EXPECT_THAT(message, AllOf(HasSubstr("node 1"), HasSubstr("test_faults::fail"), HasSubstr("fail with 7")));
  EXPECT_THROW(gpu_.synchronize(stream_.ref()), DeviceError);
  EXPECT_EQ(read<std::uint64_t>(word.ptr(), 1)[0], appended({1}));
}

TEST_P(GpuGraphConformance, DestroyingAGraphWaitsForItsReplays) {
  if (!runs_kernels()) GTEST_SKIP();
  HostFlag gate(gpu_);
  const DeviceBuffer to = upload<std::uint8_t>({0});
  auto source = std::make_unique<std::vector<std::byte>>(1, std::byte{5});
  CaptureScope capture(gpu_, stream_.ref());
  launch(gpu_, kernels::kWaitOnFlag, stream_.ref(), kernels::WaitOnFlagArgs{gate.address()});
  gpu_.copy_h2d_async_retained(to.ptr(), *source, stream_.ref());
  Graph graph = capture.finish();
  gpu_.launch_graph(graph.ref(), stream_.ref());

  std::thread destroyer([&] {
    graph.reset();
    source.reset();
  });
  gate.raise();
  destroyer.join();

  gpu_.synchronize(stream_.ref());
  EXPECT_EQ(byte_at(to.ptr()), 5);
}

TEST_P(GpuGraphConformance, DestroyingAGraphDoesNotWaitForLaterWorkOfItsStream) {
  if (!runs_kernels()) GTEST_SKIP();
  HostFlag gate(gpu_);
  const DeviceBuffer buffer = upload<std::uint8_t>({1});
  Graph graph = capture_fill(buffer.ptr(), 2);
  gpu_.launch_graph(graph.ref(), stream_.ref());
  launch(gpu_, kernels::kWaitOnFlag, stream_.ref(), kernels::WaitOnFlagArgs{gate.address()});

  graph.reset();

  gate.raise();
  gpu_.synchronize(stream_.ref());
  EXPECT_EQ(byte_at(buffer.ptr()), 2);
}

}  // namespace
}  // namespace metrale::gpu
