// SPDX-License-Identifier: Apache-2.0
// The end of a CUDA backend: everything is given back, whatever the driver says, and nothing is touched after
// the context is lost.
#include <array>

#include "backends/fake_cuda_test.h"
#include "weights/captured_log.h"

namespace metrale::test {
namespace {

namespace kernels = testing_kernels;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// A backend with one of everything, and its end.
void live_and_end() {
  const auto gpu = open_fake_backend();
  static_cast<void>(gpu->alloc_arena(64));
  static_cast<void>(gpu->alloc_pinned(64));
  static_cast<void>(gpu->alloc_pinned(std::size_t{4} << 20));
  const gpu::DeviceBuffer buffer(*gpu, 64);
  const gpu::Stream stream = gpu::make_stream(*gpu);
  const gpu::Event event = gpu::make_event(*gpu);
  gpu->load_module("foreign", fake_cuda_image());
  gpu::CaptureScope capture(*gpu, stream.ref());
  gpu->memset_async(buffer.ptr(), 1, 64, stream.ref());
  const gpu::Graph graph = capture.finish();
  gpu->launch_graph(graph.ref(), stream.ref());
  gpu->synchronize(stream.ref());
}

std::vector<std::string> calls_at_the_end() {
  std::vector<std::string> calls = kReleasingCalls;
  calls.emplace_back("cuDevicePrimaryCtxRelease");
  calls.emplace_back("cuEventSynchronize");
  return calls;
}

struct CudaTeardown : FakeCudaTest {};

TEST_F(CudaTeardown, GivesEverythingBackWithoutAWord) {
  CapturedLog log;
  live_and_end();
  EXPECT_THAT(log.lines(), IsEmpty());
}

TEST_F(CudaTeardown, IsSilentWhereTheContextWentFirst) {
  for (const int result : {4, 201, 709}) {
    for (const std::string& call : calls_at_the_end()) {
      fake_cuda().reset();
      fake_cuda().fail_always(call.c_str(), result);
      CapturedLog log;

      EXPECT_NO_THROW(live_and_end()) << call << " gives " << result;

      EXPECT_THAT(log.lines(), IsEmpty()) << call << " gives " << result;
      EXPECT_GT(fake_cuda().calls(call.c_str()), 0);
      expect_nothing_alive();
    }
  }
}

TEST_F(CudaTeardown, LogsOtherResultsAndGoesOn) {
  for (const std::string& call : calls_at_the_end()) {
    fake_cuda().reset();
    if (call == "cuMemFree") continue;  // the owner of a buffer reports it
    fake_cuda().fail_always(call.c_str(), kNotReady);
    CapturedLog log;

    EXPECT_NO_THROW(live_and_end()) << call;

    EXPECT_THAT(log.lines(), Contains(testing::AllOf(HasSubstr(call), HasSubstr("SYSTEM_NOT_READY"))));
    expect_nothing_alive();
  }
}

TEST_F(CudaTeardown, FreeingThrowsOtherResultsAndForgetsTheMemoryAllTheSame) {
  const auto gpu = open_fake_backend();
  for (const int harmless : {4, 201, 709}) {
    const DevicePtr ptr = gpu->alloc(64);
    const auto pinned = gpu->alloc_pinned(64);
    fake_cuda().fail("cuMemFree", 1, harmless);
    EXPECT_NO_THROW(gpu->free(ptr));
    fake_cuda().fail("cuMemFreeHost", 1, harmless);
    EXPECT_NO_THROW(gpu->free_pinned(pinned));
  }
  const DevicePtr ptr = gpu->alloc(64);
  fake_cuda().fail("cuMemFree", 1, kInvalidValue);
  EXPECT_THAT(gpu::message_of<DeviceError>([&] { gpu->free(ptr); }), HasSubstr("cuMemFree"));
  EXPECT_EQ(gpu->live_alloc_count(), 0U);
}

TEST_F(CudaTeardown, SweepLogsTheLargestCallSites) {
  CapturedLog log;
  {
    const auto gpu = open_fake_backend();
    for (int i = 0; i < 3; ++i) static_cast<void>(gpu->alloc(100));
    static_cast<void>(gpu->alloc(5'000));
  }
  ASSERT_GE(log.lines().size(), 3U);
  EXPECT_THAT(log.lines()[0], testing::AllOf(HasSubstr("4 device allocation(s)"), HasSubstr("5300 bytes")));
  EXPECT_THAT(log.lines()[1], testing::AllOf(HasSubstr("5000 bytes"), HasSubstr("cuda_teardown_test.cpp")));
  EXPECT_THAT(log.lines()[2], HasSubstr("300 bytes in 3 allocation(s)"));
}

TEST_F(CudaTeardown, CaptureThatIsAbandonedLeavesNothing) {
  const auto gpu = open_fake_backend();
  const gpu::Stream stream = gpu::make_stream(*gpu);
  const gpu::DeviceBuffer buffer(*gpu, 64);
  const std::vector<std::byte> host(64);
  {
    const gpu::CaptureScope capture(*gpu, stream.ref());
    gpu->copy_h2d_async_retained(buffer.ptr(), host, stream.ref());
  }
  EXPECT_EQ(fake_cuda_live().graphs, 0);
}

// ---- a lost context

void expect_lost(const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "it went on";
  } catch (const DeviceError& error) {
    EXPECT_TRUE(error.context_lost()) << error.what();
  }
}

struct CudaContextLoss : FakeCudaTest {
  // What was in the context is gone; the driver is asked for none of it.
  void TearDown() override {
    for (const std::string& call : kReleasingCalls) EXPECT_EQ(fake_cuda().calls(call.c_str()), 0) << call;
    EXPECT_EQ(fake_cuda_live().contexts, 0);
    fake_cuda().reset();
  }
};

TEST_F(CudaContextLoss, EveryCallSaysSoAndTeardownIsQuiet) {
  CapturedLog log;
  const auto gpu = open_fake_backend();
  const gpu::DeviceBuffer buffer(*gpu, 64);
  const gpu::PinnedBuffer pinned(*gpu, 64);
  const gpu::Stream stream = gpu::make_stream(*gpu);
  const gpu::Event event = gpu::make_event(*gpu);
  gpu->load_module("foreign", fake_cuda_image());
  gpu::CaptureScope capture(*gpu, stream.ref());
  gpu->memset_async(buffer.ptr(), 1, 64, stream.ref());
  const gpu::Graph graph = capture.finish();
  const gpu::KernelHandle nowhere = gpu->kernel("foreign", "write_nowhere");
  fake_cuda().forget_calls();
  const std::array<std::byte, 8> nothing{};
  const gpu::KernelArg arg(nothing);
  std::array<std::byte, 8> host{};

  gpu->launch_raw(nowhere, {}, stream.ref(), std::span(&arg, 1));

  expect_lost([&] { gpu->synchronize(stream.ref()); });
  expect_lost([&] { gpu->synchronize(gpu->default_stream()); });
  expect_lost([&] { static_cast<void>(gpu->alloc(64)); });
  expect_lost([&] { static_cast<void>(gpu->alloc_arena(64)); });
  expect_lost([&] { static_cast<void>(gpu->alloc_pinned(64)); });
  expect_lost([&] { static_cast<void>(gpu->free_memory_bytes()); });
  expect_lost([&] { gpu->memset_blocking(buffer.ptr(), 0, 64); });
  expect_lost([&] { gpu->copy_d2h_blocking(host, buffer.ptr()); });
  expect_lost([&] { gpu->copy_h2d_async(buffer.ptr(), host, stream.ref()); });
  expect_lost([&] { static_cast<void>(gpu->kernel("test_vector", "scale")); });
  expect_lost([&] { gpu->launch_raw(nowhere, {}, stream.ref(), std::span(&arg, 1)); });
  expect_lost([&] { gpu->load_module("again", fake_cuda_image()); });
  expect_lost([&] { static_cast<void>(gpu->create_stream()); });
  expect_lost([&] { static_cast<void>(gpu->create_event()); });
  expect_lost([&] { gpu->record_event(event.ref(), stream.ref()); });
  expect_lost([&] { gpu->begin_capture(stream.ref()); });
  expect_lost([&] { gpu->launch_graph(graph.ref(), stream.ref()); });
  EXPECT_EQ(gpu->sweep_unreleased(), 1U) << "the ledger is cleared";
}

TEST_F(CudaContextLoss, FoundAtTheEndIsLoggedOnce) {
  CapturedLog log;
  {
    const auto gpu = open_fake_backend();
    const gpu::Stream stream = gpu::make_stream(*gpu);
    static_cast<void>(gpu->alloc_arena(64));
    static_cast<void>(gpu->alloc_pinned(64));
    static_cast<void>(gpu->alloc_pinned(std::size_t{4} << 20));
    fake_cuda().forget_calls();
    fake_cuda().lose_context(0);
  }
  EXPECT_THAT(log.lines(), testing::ElementsAre(HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS (700)")));
}

}  // namespace
}  // namespace metrale::test
