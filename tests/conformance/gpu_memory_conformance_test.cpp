// SPDX-License-Identifier: Apache-2.0
// Allocations, the ledger, pinned memory, red zones, and what a backend says it cannot do.
#include <algorithm>
#include <array>
#include <cstring>

#include <metrale/base/error.h>
#include <metrale/gpu/mock.h>
#include <metrale/gpu/op_cache.h>

#include "conformance/gpu_backend_conformance.h"

namespace metrale::gpu {
namespace {

namespace kernels = testing_kernels;
using testing::HasSubstr;

TEST_P(GpuBackendConformance, AllocationsAreAlignedTo256BytesAndApart) {
  std::vector<DeviceBuffer> buffers;
  for (const std::size_t bytes : {1, 255, 256, 4097, 3 << 20}) buffers.emplace_back(gpu_, bytes);

  for (const DeviceBuffer& a : buffers) {
    EXPECT_EQ(a.ptr().address() % 256, 0U);
    for (const DeviceBuffer& b : buffers) {
      if (&a == &b) continue;
      EXPECT_TRUE(a.ptr().address() + a.size_bytes() <= b.ptr().address() ||
                  b.ptr().address() + b.size_bytes() <= a.ptr().address());
    }
  }
}

TEST_P(GpuBackendConformance, AllocationOfZeroBytesIsRefused) {
  EXPECT_THROW(static_cast<void>(gpu_.alloc(0)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(gpu_.alloc_arena(0)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(gpu_.alloc_pinned(0)), InvalidArgument);
}

TEST_P(GpuBackendConformance, FreeingNullDoesNothing) {
  gpu_.free({});
  gpu_.free_arena({});
  gpu_.free_pinned({});
}

TEST_P(GpuBackendConformance, FreeingTwiceIsRefused) {
  const DevicePtr ptr = gpu_.alloc(64);
  gpu_.free(ptr);
  EXPECT_THROW(gpu_.free(ptr), InvalidArgument);
}

TEST_P(GpuBackendConformance, FreeingWhatIsNoBaseIsRefused) {
  const DeviceBuffer buffer(gpu_, 64);
  EXPECT_THROW(gpu_.free(buffer.ptr().offset(8)), InvalidArgument);
  EXPECT_THROW(gpu_.free(DevicePtr(0x42)), InvalidArgument);
}

TEST_P(GpuBackendConformance, KindsOfMemoryAreNotFreedForEachOther) {
  const DevicePtr arena = gpu_.alloc_arena(64);
  const DeviceBuffer buffer(gpu_, 64);

  EXPECT_THROW(gpu_.free(arena), InvalidArgument);
  EXPECT_THROW(gpu_.free_arena(buffer.ptr()), InvalidArgument);

  gpu_.free_arena(arena);
  EXPECT_THROW(gpu_.free_arena(arena), InvalidArgument);
}

TEST_P(GpuBackendConformance, InteriorAddressesReachTheirAllocation) {
  const DeviceBuffer buffer = upload<std::uint32_t>({1, 2, 3, 4});
  write<std::uint32_t>(buffer.ptr().offset(8), {9});
  EXPECT_EQ(read<std::uint32_t>(buffer.ptr().offset(4), 3), (std::vector<std::uint32_t>{2, 9, 4}));
}

TEST_P(GpuBackendConformance, AnAddressBelongsToItsAllocationAndToNoOther) {
  const DeviceBuffer first(gpu_, 300);
  const DeviceBuffer second(gpu_, 500);
  const DevicePtr arena = gpu_.alloc_arena(700);
  const auto expect_in = [&](DevicePtr base, std::uint64_t bytes) {
    for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{1}, bytes - 1}) {
      const DeviceRange found = gpu_.allocation_of(base.offset(at));
      EXPECT_EQ(found.ptr, base) << at;
      EXPECT_EQ(found.bytes, bytes) << at;
    }
    EXPECT_NE(gpu_.allocation_of(base.offset(bytes)).ptr, base);
  };
  expect_in(first.ptr(), 300);
  expect_in(second.ptr(), 500);
  expect_in(arena, 700);

  gpu_.free_arena(arena);

  EXPECT_EQ(gpu_.allocation_of(arena).bytes, 0U);
  EXPECT_EQ(gpu_.allocation_of(DevicePtr()).bytes, 0U);
}

TEST_P(GpuBackendConformance, HostMemoryBehindAnAddressIsTheDevices) {
  const DeviceBuffer buffer = upload<std::uint32_t>({1, 2, 3, 4});
  if (!gpu_.capabilities().host_memory_is_device_memory) {
    EXPECT_THROW(static_cast<void>(gpu_.host_range(buffer.ptr(), 4)), Unsupported);
    return;
  }
  const std::span<std::byte> range = gpu_.host_range(buffer.ptr().offset(4), 8);
  ASSERT_EQ(range.size(), 8U);
  const std::uint32_t nine = 9;
  std::memcpy(range.data(), &nine, sizeof nine);
  EXPECT_EQ(read<std::uint32_t>(buffer.ptr(), 4), (std::vector<std::uint32_t>{1, 9, 3, 4}));
  EXPECT_THROW(static_cast<void>(gpu_.host_range(buffer.ptr().offset(4), 13)), InvalidArgument);
}

TEST_P(GpuBackendConformance, AccessBeyondAnAllocationIsRefused) {
  const DeviceBuffer buffer(gpu_, 64);
  const DeviceBuffer other(gpu_, 128);
  std::array<std::byte, 65> host{};
  const StreamRef stream = gpu_.default_stream();

  EXPECT_THROW(gpu_.copy_h2d_blocking(buffer.ptr(), host), InvalidArgument);
  EXPECT_THROW(gpu_.copy_d2h_blocking(host, buffer.ptr()), InvalidArgument);
  EXPECT_THROW(gpu_.copy_d2d_blocking(buffer.ptr(), other.ptr(), 65), InvalidArgument);
  EXPECT_THROW(gpu_.copy_d2d_blocking(other.ptr(), buffer.ptr(), 65), InvalidArgument);
  EXPECT_THROW(gpu_.memset_blocking(buffer.ptr().offset(1), 0, 64), InvalidArgument);
  EXPECT_THROW(gpu_.copy_h2d_async(buffer.ptr(), host, stream), InvalidArgument);
  EXPECT_THROW(gpu_.copy_h2d_async_retained(buffer.ptr(), host, stream), InvalidArgument);
  EXPECT_THROW(gpu_.copy_d2h_async(host, buffer.ptr(), stream), InvalidArgument);
  EXPECT_THROW(gpu_.copy_d2d_async(buffer.ptr(), other.ptr(), 65, stream), InvalidArgument);
  EXPECT_THROW(gpu_.copy_d2d_2d_async(buffer.ptr(), 33, other.ptr(), 33, 32, 2, stream), InvalidArgument);
  EXPECT_THROW(gpu_.memset_async(buffer.ptr(), 0, 65, stream), InvalidArgument);
  EXPECT_NO_THROW(gpu_.synchronize(stream)) << "a refused call leaves the stream as it was";
}

TEST_P(GpuBackendConformance, FreedMemoryIsNoTarget) {
  DeviceBuffer buffer(gpu_, 64);
  const DevicePtr stale = buffer.ptr();
  buffer.release();

  const std::string message = message_of<InvalidArgument>([&] { gpu_.memset_blocking(stale, 0, 1); });

  EXPECT_THAT(message, HasSubstr("no live allocation"));
}

TEST_P(GpuBackendConformance, LackOfMemorySaysWhatIsFree) {
  const auto rig = make({.max_memory_bytes = 1'000});
  const DeviceBuffer kept(rig->gpu(), 600);

  try {
    static_cast<void>(rig->gpu().alloc(401));
    ADD_FAILURE() << "it fitted";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.wanted_bytes(), 401U);
    EXPECT_EQ(error.free_bytes(), 400U);
    EXPECT_EQ(error.tier(), "device");
  }
  EXPECT_THROW(static_cast<void>(rig->gpu().alloc_arena(401)), OutOfMemory);
  EXPECT_EQ(rig->gpu().free_memory_bytes(), 400U);
  EXPECT_EQ(rig->gpu().live_alloc_count(), 1U);
}

TEST_P(GpuBackendConformance, FreedMemoryCanBeAllocatedAgain) {
  const auto rig = make({.max_memory_bytes = 1'000});
  for (int i = 0; i < 3; ++i) {
    const DeviceBuffer all(rig->gpu(), 1'000);
    EXPECT_EQ(rig->gpu().free_memory_bytes(), 0U);
  }
  const DevicePtr arena = rig->gpu().alloc_arena(1'000);
  EXPECT_EQ(rig->gpu().free_memory_bytes(), 0U);
  rig->gpu().free_arena(arena);
  EXPECT_EQ(rig->gpu().free_memory_bytes(), 1'000U);
}

TEST_P(GpuBackendConformance, AbsurdSizesAreOutOfMemory) {
  EXPECT_THROW(static_cast<void>(gpu_.alloc(~std::size_t{0})), OutOfMemory);
  EXPECT_THROW(static_cast<void>(gpu_.alloc(~std::size_t{0} / 2)), OutOfMemory);
  EXPECT_THROW(static_cast<void>(gpu_.alloc_arena(~std::size_t{0} - 100)), OutOfMemory);
  EXPECT_THROW(static_cast<void>(gpu_.alloc_pinned(~std::size_t{0})), OutOfMemory);
  EXPECT_EQ(gpu_.live_alloc_count(), 0U);
}

TEST_P(GpuBackendConformance, MemoryFiguresAreInOrder) {
  EXPECT_GT(gpu_.total_memory_bytes(), 0U);
  EXPECT_LE(gpu_.free_memory_bytes(), gpu_.total_memory_bytes());
  EXPECT_LE(gpu_.device_free_memory_bytes(), gpu_.total_memory_bytes());
  EXPECT_GT(gpu_.sm_count(), 0U);
}

// ---- the ledger

TEST_P(GpuBackendConformance, LedgerCountsAllocationsButNotTheArena) {
  const DeviceBuffer one(gpu_, 100);
  const DeviceBuffer two(gpu_, 28);
  const DevicePtr arena = gpu_.alloc_arena(1'000);
  const PinnedBuffer pinned(gpu_, 1'000);

  EXPECT_EQ(gpu_.live_bytes(), 128U);
  EXPECT_EQ(gpu_.live_alloc_count(), 2U);
  gpu_.free_arena(arena);
  EXPECT_EQ(gpu_.live_alloc_count(), 2U);
}

TEST_P(GpuBackendConformance, ReportNamesTheCallSite) {
  std::vector<DeviceBuffer> buffers;
  for (int i = 0; i < 3; ++i) buffers.emplace_back(gpu_, 50);
  const DevicePtr large = gpu_.alloc(1'000);
  const unsigned line = __LINE__ - 1;

  const auto report = gpu_.alloc_report(2, 100);

  ASSERT_EQ(report.size(), 2U);
  EXPECT_EQ(report[0].site.line, line);
  EXPECT_THAT(report[0].site.file, HasSubstr("gpu_memory_conformance_test.cpp"));
  EXPECT_EQ(report[1].bytes, 150U);
  EXPECT_EQ(report[1].count, 3U);
  gpu_.free(large);
}

TEST_P(GpuBackendConformance, SweepFreesWhatWasForgotten) {
  static_cast<void>(gpu_.alloc(100));
  static_cast<void>(gpu_.alloc(200));

  EXPECT_EQ(gpu_.sweep_unreleased(), 2U);

  EXPECT_EQ(gpu_.live_alloc_count(), 0U);
  EXPECT_EQ(gpu_.sweep_unreleased(), 0U);
}

TEST_P(GpuBackendConformance, ScratchOfTheOpCacheIsNotForgotten) {
  static_cast<void>(gpu_.op_cache().scratch(gpu_, "tag", 100));

  EXPECT_EQ(gpu_.sweep_unreleased(), 0U);

  EXPECT_EQ(gpu_.live_alloc_count(), 0U);
  EXPECT_NO_THROW(gpu_.op_cache().release(gpu_));
}

// ---- pinned memory

TEST_P(GpuBackendConformance, PinnedMemoryIsZeroedAndPageAligned) {
  for (int i = 0; i < 3; ++i) {
    const PinnedBuffer pinned(gpu_, 5'000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pinned.data()) % 4096, 0U);
    EXPECT_EQ(pinned.size_bytes(), 5'000U);
    EXPECT_TRUE(std::all_of(pinned.span().begin(), pinned.span().end(),
                            [](std::byte b) { return b == std::byte{0}; }));
    std::memset(pinned.data(), 0xAB, pinned.size_bytes());
  }
}

TEST_P(GpuBackendConformance, PinnedMemoryIsReachedThroughItsDeviceAddress) {
  if (!gpu_.capabilities().pinned_device_address) GTEST_SKIP();
  const PinnedBuffer pinned(gpu_, 64);

  gpu_.memset_blocking(pinned.device_address(), 7, 64);
  const DevicePtr inside = gpu_.device_address_of_pinned(pinned.data() + 10);

  EXPECT_EQ(pinned.data()[63], std::byte{7});
  EXPECT_EQ(inside, pinned.device_address().offset(10));
  if (gpu_.capabilities().host_memory_is_device_memory) {
    EXPECT_EQ(inside.address(), reinterpret_cast<std::uintptr_t>(pinned.data() + 10));
  }
}

TEST_P(GpuBackendConformance, OrdinaryMemoryHasNoDeviceAddress) {
  if (!gpu_.capabilities().pinned_device_address) GTEST_SKIP();
  const std::byte on_the_stack{};
  EXPECT_THROW(static_cast<void>(gpu_.device_address_of_pinned(&on_the_stack)), InvalidArgument);
}

TEST_P(GpuBackendConformance, FreeingForeignPinnedMemoryIsRefused) {
  std::array<std::byte, 64> foreign{};
  const auto pinned = gpu_.alloc_pinned(64);
  EXPECT_THROW(gpu_.free_pinned(foreign), InvalidArgument);
  EXPECT_THROW(gpu_.free_pinned(pinned.subspan(8)), InvalidArgument);
  gpu_.free_pinned(pinned);
  EXPECT_THROW(gpu_.free_pinned(pinned), InvalidArgument);
}

// ---- red zones

// Writes past the end of an allocation as a wrong kernel would.
void overrun(Rig& rig, DevicePtr ptr, std::size_t bytes) {
  GpuBackend& gpu = rig.gpu();
  if (gpu.capabilities().runs_kernels) {
    launch(
        gpu, kernels::kFill, gpu.default_stream(),
        kernels::FillArgs{.address = ptr.address(), .count = static_cast<std::uint32_t>(bytes), .value = 0});
    gpu.synchronize(gpu.default_stream());
  } else if (auto* const mock = dynamic_cast<MockBackend*>(rig.stack.front().get())) {
    std::memset(mock->host_bytes(ptr).data(), 0, bytes);
  }
}

TEST_P(GpuBackendConformance, WritePastTheEndIsFoundInTheRedZone) {
  const auto rig = make({.red_zone_bytes = 64});
  GpuBackend& gpu = rig->gpu();
  ASSERT_TRUE(gpu.capabilities().red_zones);
  const DeviceBuffer good(gpu, 100);
  const DeviceBuffer bad(gpu, 100);
  EXPECT_TRUE(gpu.scan_red_zones().empty());

  overrun(*rig, bad.ptr(), 103);
  overrun(*rig, good.ptr(), 100);

  const auto hits = gpu.scan_red_zones();
  ASSERT_EQ(hits.size(), 1U);
  EXPECT_EQ(hits[0].allocation.base, bad.ptr());
  EXPECT_EQ(hits[0].first_bad_offset, 100U);
}

TEST_P(GpuBackendConformance, RedZonesAreRefilledByAllocationId) {
  const auto rig = make({.red_zone_bytes = 64});
  GpuBackend& gpu = rig->gpu();
  const DeviceBuffer one(gpu, 100);
  const DeviceBuffer two(gpu, 100);
  overrun(*rig, one.ptr(), 101);
  overrun(*rig, two.ptr(), 101);
  auto hits = gpu.scan_red_zones();
  ASSERT_EQ(hits.size(), 2U);
  const std::uint64_t last = std::max(hits[0].allocation.id, hits[1].allocation.id);

  gpu.poison_red_zones(0, last);

  hits = gpu.scan_red_zones();
  ASSERT_EQ(hits.size(), 1U);
  EXPECT_EQ(hits[0].allocation.id, last);
}

TEST_P(GpuBackendConformance, CopiesDoNotReachTheRedZone) {
  const auto rig = make({.red_zone_bytes = 64});
  const DeviceBuffer buffer(rig->gpu(), 100);
  EXPECT_THROW(rig->gpu().memset_blocking(buffer.ptr(), 0, 101), InvalidArgument);
}

// ---- capabilities

TEST_P(GpuBackendConformance, WhatIsNotOfferedIsUnsupportedAndWhatIsOfferedIsNot) {
  const Capabilities offers = gpu_.capabilities();
  const StreamRef stream = gpu_.default_stream();
  const auto agrees = [](bool offered, const char* call, const std::function<void()>& make_call) {
    bool unsupported = false;
    try {
      make_call();
    } catch (const Unsupported&) {
      unsupported = true;
    } catch (const Error&) {
      unsupported = false;
    }
    EXPECT_NE(offered, unsupported) << call;
  };

  agrees(offers.graphs, "begin_capture", [&] { gpu_.begin_capture(stream); });
  gpu_.abort_capture_if_active(stream);
  agrees(offers.graphs, "end_capture", [&] { static_cast<void>(gpu_.end_capture(stream)); });
  agrees(offers.graphs, "launch_graph", [&] { gpu_.launch_graph({}, stream); });
  agrees(offers.graphs, "destroy_graph", [&] { gpu_.destroy_graph({}); });
  agrees(offers.pinned_device_address, "device_address_of_pinned",
         [&] { static_cast<void>(gpu_.device_address_of_pinned(nullptr)); });
  agrees(offers.raw_launch, "launch_raw", [&] { gpu_.launch_raw({}, {}, stream, {}); });
  const std::byte no_image{0x7F};
  agrees(offers.foreign_modules, "load_module", [&] { gpu_.load_module("m", std::span(&no_image, 1)); });
  agrees(offers.foreign_modules, "load_module_file", [&] { gpu_.load_module_file("m", "/no/such/file"); });
  agrees(offers.foreign_modules, "device_symbol", [&] { static_cast<void>(gpu_.device_symbol("m", "s")); });
  agrees(offers.red_zones, "scan_red_zones", [&] { static_cast<void>(gpu_.scan_red_zones()); });
  agrees(offers.red_zones, "poison_red_zones", [&] { gpu_.poison_red_zones(0, 1); });
  EXPECT_FALSE(gpu_.stream_is_capturing(stream));
}

TEST_P(GpuBackendConformance, RedZonesAreOnlyThereWhenAskedFor) {
  EXPECT_FALSE(gpu_.capabilities().red_zones);
  const std::string message = message_of<Unsupported>([&] { static_cast<void>(gpu_.scan_red_zones()); });
  EXPECT_THAT(message, HasSubstr(std::string(gpu_.name())));
}

}  // namespace
}  // namespace metrale::gpu
