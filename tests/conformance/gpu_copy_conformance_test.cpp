// SPDX-License-Identifier: Apache-2.0
// Copies and fills, blocking and enqueued.
#include <algorithm>
#include <array>
#include <numeric>

#include <metrale/base/error.h>

#include "conformance/gpu_backend_conformance.h"

namespace metrale::gpu {
namespace {

namespace kernels = testing_kernels;

using Words = std::vector<std::uint32_t>;

TEST_P(GpuBackendConformance, BytesComeBackFromTheDevice) {
  const Words sent{1, 2, 3, 4};
  const DeviceBuffer buffer = upload(sent);
  EXPECT_EQ(read<std::uint32_t>(buffer.ptr(), 4), sent);
}

TEST_P(GpuBackendConformance, LargeCopiesArriveWhole) {
  Words sent((3 << 20) + 5);
  std::iota(sent.begin(), sent.end(), 7U);
  const StreamRef stream = gpu_.default_stream();
  const std::size_t bytes = sent.size() * sizeof(std::uint32_t);
  const DeviceBuffer from(gpu_, bytes);
  const DeviceBuffer to(gpu_, bytes);
  Words received(sent.size());

  gpu_.copy_h2d_async(from.ptr(), std::as_bytes(std::span(sent)), stream);
  gpu_.memset_async(to.ptr(), 1, bytes, stream);
  gpu_.copy_d2d_async(to.ptr(), from.ptr(), bytes, stream);
  gpu_.copy_d2h_async(std::as_writable_bytes(std::span(received)), to.ptr(), stream);
  gpu_.synchronize(stream);

  EXPECT_EQ(received, sent);
}

TEST_P(GpuBackendConformance, FillSetsItsRangeAndNothingElse) {
  const DeviceBuffer buffer = upload<std::uint8_t>({1, 2, 3, 4, 5});

  gpu_.memset_blocking(buffer.ptr().offset(1), 9, 2);
  gpu_.memset_async(buffer.ptr().offset(4), 8, 1, gpu_.default_stream());
  gpu_.synchronize(gpu_.default_stream());

  EXPECT_EQ(read<std::uint8_t>(buffer.ptr(), 5), (std::vector<std::uint8_t>{1, 9, 9, 4, 8}));
}

TEST_P(GpuBackendConformance, SourceOfAnAsynchronousCopyMayChangeAtOnce) {
  for (const std::size_t count : {3UL, 100'000UL}) {
    const Stream stream = make_stream(gpu_);
    const DeviceBuffer buffer(gpu_, count * sizeof(std::uint32_t));
    const Words sent(count, 5);
    Words source = sent;
    HostFlag gate(gpu_);
    if (runs_kernels()) {
      launch(gpu_, kernels::kWaitOnFlag, stream.ref(), kernels::WaitOnFlagArgs{gate.address()});
    }

    gpu_.copy_h2d_async(buffer.ptr(), std::as_bytes(std::span(source)), stream.ref());
    std::fill(source.begin(), source.end(), 6U);
    gate.raise();
    gpu_.synchronize(stream.ref());

    EXPECT_EQ(read<std::uint32_t>(buffer.ptr(), count), sent);
  }
}

TEST_P(GpuBackendConformance, RetainedSourceIsCopiedInStreamOrder) {
  const StreamRef stream = gpu_.default_stream();
  const DeviceBuffer buffer(gpu_, 4);
  const Words first{1};
  const Words second{2};

  gpu_.copy_h2d_async_retained(buffer.ptr(), std::as_bytes(std::span(first)), stream);
  gpu_.copy_h2d_async_retained(buffer.ptr(), std::as_bytes(std::span(second)), stream);
  gpu_.synchronize(stream);

  EXPECT_EQ(read<std::uint32_t>(buffer.ptr(), 1), second);
}

TEST_P(GpuBackendConformance, CopyToTheHostOnAStreamWaitsForThatStream) {
  const Stream stream = make_stream(gpu_);
  const DeviceBuffer buffer(gpu_, 1'000);
  std::array<std::uint8_t, 1'000> host{};

  gpu_.memset_async(buffer.ptr(), 3, 1'000, stream.ref());
  gpu_.copy_d2h_on_stream(std::as_writable_bytes(std::span(host)), buffer.ptr(), stream.ref());

  EXPECT_EQ(std::count(host.begin(), host.end(), 3), 1'000);
}

TEST_P(GpuBackendConformance, RowsAreCopiedAtTheirPitches) {
  const DeviceBuffer from = upload<std::uint8_t>({1, 2, 0, 0, 3, 4, 0, 0, 5, 6});
  const DeviceBuffer to = upload<std::uint8_t>(std::vector<std::uint8_t>(8, 9));
  const StreamRef stream = gpu_.default_stream();

  gpu_.copy_d2d_2d_async(to.ptr(), 3, from.ptr(), 4, 2, 3, stream);
  gpu_.synchronize(stream);

  EXPECT_EQ(read<std::uint8_t>(to.ptr(), 8), (std::vector<std::uint8_t>{1, 2, 9, 3, 4, 9, 5, 6}));
}

TEST_P(GpuBackendConformance, RowsWiderThanAPitchAreRefused) {
  const DeviceBuffer buffer(gpu_, 64);
  const StreamRef stream = gpu_.default_stream();
  EXPECT_THROW(gpu_.copy_d2d_2d_async(buffer.ptr(), 3, buffer.ptr().offset(32), 4, 4, 2, stream),
               InvalidArgument);
  EXPECT_THROW(gpu_.copy_d2d_2d_async(buffer.ptr(), 4, buffer.ptr().offset(32), 3, 4, 2, stream),
               InvalidArgument);
}

TEST_P(GpuBackendConformance, RowsBeyond64BitsAreRefused) {
  const DeviceBuffer buffer(gpu_, 64);
  const std::size_t half = std::size_t{1} << 63;
  EXPECT_THROW(
      gpu_.copy_d2d_2d_async(buffer.ptr(), half, buffer.ptr().offset(32), half, 4, 5, gpu_.default_stream()),
      InvalidArgument);
}

TEST_P(GpuBackendConformance, CopiesOfNothingDoNothing) {
  const StreamRef stream = gpu_.default_stream();
  gpu_.copy_h2d_blocking({}, {});
  gpu_.copy_d2h_blocking({}, {});
  gpu_.copy_d2d_blocking({}, {}, 0);
  gpu_.memset_blocking({}, 0, 0);
  gpu_.copy_h2d_async({}, {}, stream);
  gpu_.copy_h2d_async_retained({}, {}, stream);
  gpu_.copy_d2h_async({}, {}, stream);
  gpu_.copy_d2h_on_stream({}, {}, stream);
  gpu_.copy_d2d_async({}, {}, 0, stream);
  gpu_.copy_d2d_2d_async({}, 4, {}, 4, 4, 0, stream);
  gpu_.copy_d2d_2d_async({}, 4, {}, 4, 0, 4, stream);
  gpu_.memset_async({}, 0, 0, stream);
  gpu_.synchronize(stream);
}

TEST_P(GpuBackendConformance, OverlappingDeviceCopiesAreRefused) {
  const DeviceBuffer buffer(gpu_, 64);
  const DevicePtr ptr = buffer.ptr();
  EXPECT_THROW(gpu_.copy_d2d_blocking(ptr, ptr.offset(8), 16), InvalidArgument);
  EXPECT_THROW(gpu_.copy_d2d_async(ptr.offset(8), ptr, 16, gpu_.default_stream()), InvalidArgument);
  EXPECT_NO_THROW(gpu_.copy_d2d_blocking(ptr, ptr.offset(16), 16));
}

TEST_P(GpuBackendConformance, StatsCountCallsAndBytes) {
  const StreamRef stream = gpu_.default_stream();
  const Words host{1, 2};
  Words back(2);
  const auto source = std::as_bytes(std::span(host));
  const auto target = std::as_writable_bytes(std::span(back));
  const DevicePtr ptr = gpu_.alloc(64);

  gpu_.copy_h2d_blocking(ptr, source);
  gpu_.copy_h2d_async(ptr, source, stream);
  gpu_.copy_h2d_async_retained(ptr, source, stream);
  gpu_.copy_d2h_async(target, ptr, stream);
  gpu_.copy_d2h_on_stream(target, ptr, stream);
  gpu_.copy_d2h_blocking(target, ptr);
  gpu_.synchronize(stream);
  EXPECT_THROW(gpu_.memset_blocking(ptr, 0, 65), InvalidArgument);
  gpu_.free(ptr);
  gpu_.free({});

  const BackendStats stats = gpu_.stats();
  EXPECT_EQ(stats.allocs, 1U);
  EXPECT_EQ(stats.frees, 1U);
  EXPECT_EQ(stats.h2d_copies, 3U);
  EXPECT_EQ(stats.h2d_bytes, 24U);
  EXPECT_EQ(stats.d2h_copies, 3U);
  EXPECT_EQ(stats.d2h_bytes, 24U);
  EXPECT_EQ(stats.synchronizes, 4U);
  EXPECT_EQ(stats.launches, 0U);
}

}  // namespace
}  // namespace metrale::gpu
