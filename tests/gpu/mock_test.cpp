// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/mock.h>
#include <metrale/gpu/stream.h>

namespace metrale::gpu {
namespace {

struct PairArgs {
  std::uint64_t address;
  std::uint64_t count;
};
constexpr KernelId<PairArgs> kPair{"family", "pair"};
LaunchShape launch_shape(const PairArgs& args) {
  return {.grid = {.x = static_cast<std::uint32_t>(args.count)}, .block = {.x = 64}};
}

TEST(MockBackend, RemembersLaunchesWithTheirTypedArguments) {
  const auto gpu = make_mock_backend();
  const Stream stream = make_stream(*gpu);

  launch(*gpu, kPair, stream.ref(), PairArgs{.address = 1, .count = 2});
  launch(*gpu, kPair, gpu->default_stream(), PairArgs{.address = 3, .count = 4});

  const auto calls = gpu->calls(kPair);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[1].address, 3U);
  const auto launches = gpu->launches();
  EXPECT_EQ(launches[0].stream, stream.ref());
  EXPECT_EQ(launches[0].shape.grid.x, 2U);
  EXPECT_EQ(launches[1].function, "pair");
}

TEST(MockBackend, RemembersRawArgumentsOneByOne) {
  const auto gpu = make_mock_backend();
  const std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
  const std::array<KernelArg, 2> args{DevicePtr(0x77), std::span<const std::byte>(bytes)};

  gpu->launch_raw(gpu->kernel("a", "b"), {}, gpu->default_stream(), args);

  const auto launches = gpu->launches();
  ASSERT_EQ(launches.size(), 1U);
  ASSERT_EQ(launches[0].raw_args.size(), 2U);
  EXPECT_EQ(launches[0].raw_args[0].size(), 8U);
  EXPECT_EQ(launches[0].raw_args[0][0], std::byte{0x77});
  EXPECT_EQ(launches[0].raw_args[1].size(), 3U);
}

TEST(MockBackend, CapturedLaunchIsRememberedAtEachReplay) {
  const auto gpu = make_mock_backend();
  CaptureScope capture(*gpu, gpu->default_stream());
  launch(*gpu, kPair, gpu->default_stream(), PairArgs{.address = 0, .count = 1});
  const Graph graph = capture.finish();
  EXPECT_TRUE(gpu->launches().empty());
  const Stream other = make_stream(*gpu);

  gpu->launch_graph(graph.ref(), other.ref());
  gpu->launch_graph(graph.ref(), other.ref());

  const auto launches = gpu->launches();
  ASSERT_EQ(launches.size(), 2U);
  EXPECT_EQ(launches[0].stream, other.ref());
}

TEST(MockBackend, LookupsAreRememberedHitOrMiss) {
  const auto gpu = make_mock_backend();
  gpu->deny_kernel("norm", "missing");

  static_cast<void>(gpu->kernel("norm", "rms_norm"));
  EXPECT_THROW(static_cast<void>(gpu->kernel("norm", "missing")), InvalidArgument);

  const std::vector<std::pair<std::string, std::string>> expected{{"norm", "rms_norm"}, {"norm", "missing"}};
  EXPECT_EQ(gpu->lookups(), expected);
}

TEST(MockBackend, AbsentModuleOnlyAnswersNo) {
  const auto gpu = make_mock_backend();
  gpu->mark_module_absent("norm");

  EXPECT_FALSE(gpu->has_module("norm"));
  EXPECT_TRUE(gpu->has_module("rope"));
  EXPECT_NO_THROW(static_cast<void>(gpu->kernel("norm", "rms_norm")));
}

TEST(MockBackend, AllocationAboveTheLimitIsRefused) {
  const auto gpu = make_mock_backend({.max_alloc_bytes = 100});
  EXPECT_THROW(static_cast<void>(gpu->alloc(101)), OutOfMemory);
  gpu->free(gpu->alloc(100));
}

TEST(MockBackend, HugeAllocationsCostNothingUntilTouched) {
  const auto gpu = make_mock_backend();
  const DevicePtr ptr = gpu->alloc(std::size_t{100} << 30);
  EXPECT_EQ(gpu->free_memory_bytes(), std::uint64_t{20} << 30);
  gpu->free(ptr);
}

TEST(MockBackend, DeviceAddressesAreNotHostAddressesAndNeverComeBack) {
  const auto gpu = make_mock_backend();
  const DevicePtr first = gpu->alloc(16);
  gpu->free(first);
  const DevicePtr second = gpu->alloc(16);

  EXPECT_EQ(first.address(), 0x1000'0000U);
  EXPECT_GT(second.address(), first.address());
  EXPECT_NE(reinterpret_cast<std::uintptr_t>(gpu->host_bytes(second).data()), second.address());
  gpu->free(second);
}

TEST(MockBackend, TestsCanPlayTheKernel) {
  const auto gpu = make_mock_backend();
  const DevicePtr ptr = gpu->alloc(8);
  std::memset(gpu->host_bytes(ptr.offset(4)).data(), 7, 4);
  std::array<std::byte, 8> host{};

  gpu->copy_d2h_blocking(host, ptr);

  EXPECT_EQ(host[3], std::byte{0xFF}) << "fresh memory is poisoned";
  EXPECT_EQ(host[4], std::byte{7});
  gpu->free(ptr);
}

TEST(MockBackend, NthCallThatCanFailFailsOnceAndDoesNothing) {
  const auto gpu = make_mock_backend();
  const DevicePtr ptr = gpu->alloc(64);
  std::array<std::byte, 16> host{};
  const StreamRef stream = gpu->default_stream();
  const EventRef event = gpu->create_event();
  const KernelHandle kernel = gpu->kernel("a", "b");
  const std::vector<std::function<void()>> calls{
      [&] { static_cast<void>(gpu->alloc(1)); },
      [&] { static_cast<void>(gpu->alloc_arena(1)); },
      [&] { static_cast<void>(gpu->alloc_pinned(1)); },
      [&] { gpu->copy_h2d_blocking(ptr, host); },
      [&] { gpu->copy_d2h_blocking(host, ptr); },
      [&] { gpu->copy_d2d_blocking(ptr, ptr.offset(16), 16); },
      [&] { gpu->memset_blocking(ptr, 0, 16); },
      [&] { gpu->copy_h2d_async(ptr, host, stream); },
      [&] { gpu->copy_h2d_async_retained(ptr, host, stream); },
      [&] { gpu->copy_d2h_async(host, ptr, stream); },
      [&] { gpu->copy_d2d_async(ptr, ptr.offset(16), 16, stream); },
      [&] { gpu->copy_d2d_2d_async(ptr, 4, ptr.offset(32), 4, 4, 2, stream); },
      [&] { gpu->memset_async(ptr, 0, 16, stream); },
      [&] { gpu->launch(kernel, {}, stream, {}); },
      [&] { gpu->launch_raw(kernel, {}, stream, {}); },
      [&] { static_cast<void>(gpu->create_stream()); },
      [&] { static_cast<void>(gpu->create_event()); },
      [&] { gpu->begin_capture(stream); },
      [&] { gpu->synchronize(stream); },
      [&] { gpu->event_synchronize(event); },
  };

  for (std::size_t i = 0; i < calls.size(); ++i) {
    gpu->fail_nth(1);
    EXPECT_THROW(calls[i](), Error) << i;
  }
  EXPECT_EQ(gpu->live_alloc_count(), 1U);
  EXPECT_TRUE(gpu->launches().empty());
  EXPECT_FALSE(gpu->stream_is_capturing(stream));
  gpu->synchronize(stream);
  gpu->free(ptr);
}

}  // namespace
}  // namespace metrale::gpu
