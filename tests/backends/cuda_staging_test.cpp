// SPDX-License-Identifier: Apache-2.0
// Copies of ordinary memory: they never wait, and their staging pieces are used again.
#include "backends/fake_cuda_test.h"

namespace metrale::test {
namespace {

namespace kernels = testing_kernels;

constexpr std::size_t kPiece = 256 << 10;

struct CudaStaging : FakeCudaTest {
  std::unique_ptr<gpu::GpuBackend> gpu = open_fake_backend();
  void TearDown() override {
    gpu.reset();
    expect_nothing_alive();
  }
};

TEST_F(CudaStaging, EnqueuingNeverWaitsForABlockedStream) {
  const gpu::DeviceBuffer buffer(*gpu, 40 * kPiece);
  const std::vector<std::byte> from(40 * kPiece, std::byte{7});
  std::vector<std::byte> to(40 * kPiece);
  gpu::HostFlag gate(*gpu);
  launch(*gpu, kernels::kWaitOnFlag, gpu->default_stream(), kernels::WaitOnFlagArgs{gate.address()});
  const int before = fake_cuda().pageable_copies();
  fake_cuda().forget_calls();

  gpu->copy_h2d_async(buffer.ptr(), from, gpu->default_stream());
  gpu->copy_h2d_async_retained(buffer.ptr(), from, gpu->default_stream());
  gpu->copy_d2h_async(to, buffer.ptr(), gpu->default_stream());

  EXPECT_EQ(fake_cuda().pageable_copies(), before) << "the driver's copies of such memory wait";
  EXPECT_EQ(fake_cuda().calls("cuStreamSynchronize"), 0);
  EXPECT_EQ(fake_cuda().calls("cuEventSynchronize"), 0);
  EXPECT_EQ(to[0], std::byte{0}) << "nothing has run";
  gate.raise();
  gpu->synchronize(gpu->default_stream());
  EXPECT_EQ(to, from);
}

TEST_F(CudaStaging, FirstUseOfAModuleDoesNotWaitForABlockedStream) {
  const gpu::DeviceBuffer word(*gpu, 8);
  gpu::HostFlag gate(*gpu);
  launch(*gpu, kernels::kWaitOnFlag, gpu->default_stream(), kernels::WaitOnFlagArgs{gate.address()});
  fake_cuda().forget_calls();

  launch(*gpu, kernels::kAppend, gpu->default_stream(),
         kernels::AppendArgs{.value = word.ptr().address(), .number = 1});

  EXPECT_EQ(fake_cuda().calls("cuModuleLoadDataEx"), 1);
  gate.raise();
  gpu->synchronize(gpu->default_stream());
}

TEST_F(CudaStaging, FirstUseOfAModuleDoesNotHarmACapture) {
  const gpu::DeviceBuffer word(*gpu, 8);
  const gpu::Stream stream = gpu::make_stream(*gpu);
  gpu->memset_blocking(word.ptr(), 0, 8);
  gpu::CaptureScope capture(*gpu, stream.ref());
  launch(*gpu, kernels::kAppend, stream.ref(),
         kernels::AppendArgs{.value = word.ptr().address(), .number = 1});
  const gpu::Graph graph = capture.finish();
  EXPECT_NO_THROW(gpu->launch_graph(graph.ref(), stream.ref()));
  gpu->synchronize(stream.ref());
}

TEST_F(CudaStaging, PiecesAreUsedAgain) {
  const gpu::DeviceBuffer buffer(*gpu, 64);
  const std::vector<std::byte> from(64, std::byte{7});
  std::vector<std::byte> to(64);
  fake_cuda().forget_calls();

  for (int i = 0; i < 10'000; ++i) {
    gpu->copy_h2d_async(buffer.ptr(), from, gpu->default_stream());
    if (i % 16 == 0) gpu->copy_d2h_on_stream(to, buffer.ptr(), gpu->default_stream());
  }

  gpu->synchronize(gpu->default_stream());
  EXPECT_LE(fake_cuda().calls("cuMemHostAlloc"), 1);
  EXPECT_EQ(to, from);
}

TEST_F(CudaStaging, GraphGivesItsPiecesBackWhenItIsDestroyed) {
  const gpu::DeviceBuffer buffer(*gpu, 30 * kPiece);
  const std::vector<std::byte> from(30 * kPiece);
  const gpu::Stream stream = gpu::make_stream(*gpu);
  fake_cuda().forget_calls();

  for (int i = 0; i < 5; ++i) {
    gpu::CaptureScope capture(*gpu, stream.ref());
    gpu->copy_h2d_async_retained(buffer.ptr(), from, stream.ref());
    const gpu::Graph graph = capture.finish();
    gpu->launch_graph(graph.ref(), stream.ref());
  }

  EXPECT_EQ(fake_cuda().calls("cuMemHostAlloc"), 0) << "there are 32 from the beginning";
}

TEST_F(CudaStaging, DiscardedCaptureGivesItsPiecesBack) {
  const gpu::DeviceBuffer buffer(*gpu, 30 * kPiece);
  const std::vector<std::byte> from(30 * kPiece);
  const gpu::Stream stream = gpu::make_stream(*gpu);
  fake_cuda().forget_calls();

  for (int i = 0; i < 5; ++i) {
    const gpu::CaptureScope capture(*gpu, stream.ref());
    gpu->copy_h2d_async_retained(buffer.ptr(), from, stream.ref());
  }

  EXPECT_EQ(fake_cuda().calls("cuMemHostAlloc"), 0);
}

TEST_F(CudaStaging, PinnedMemoryOfSomebodyElseIsCopiedFromWhereItLies) {
  const auto other = open_fake_backend();
  const gpu::PinnedBuffer pinned(*other, 64);
  const gpu::DeviceBuffer buffer(*gpu, 64);
  fake_cuda().forget_calls();
  gpu->copy_h2d_async_retained(buffer.ptr(), pinned.span(), gpu->default_stream());
  EXPECT_EQ(fake_cuda().calls("cuLaunchHostFunc"), 0);
  gpu->synchronize(gpu->default_stream());
}

}  // namespace
}  // namespace metrale::test
