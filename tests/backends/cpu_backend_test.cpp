// SPDX-License-Identifier: Apache-2.0
// What the CPU backend promises beyond the interface.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <metrale/backends/cpu.h>
#include <metrale/base/error.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/stream.h>

#include "backends/cpu/checks.h"
#include "backends/cpu/failure.h"
#include "backends/cpu/host_memory.h"
#include "conformance/test_kernels.h"

namespace metrale::backends {
namespace {

namespace kernels = testing_kernels;

// Calls a host function from inside a stream.
struct CallArgs {
  std::uint64_t function;  // const std::function<void()>*
};
constexpr gpu::KernelId<CallArgs> kCall{"test_host", "call"};
gpu::LaunchShape launch_shape(const CallArgs&) {
  return {};
}
void call(ThreadPool&, const CallArgs& args) {
  (*reinterpret_cast<const std::function<void()>*>(args.function))();
}
void enqueue_call(gpu::GpuBackend& gpu, gpu::StreamRef stream, const std::function<void()>& function) {
  launch(gpu, kCall, stream, CallArgs{.function = reinterpret_cast<std::uintptr_t>(&function)});
}

std::unique_ptr<gpu::GpuBackend> make(const CpuBackendOptions& options = {}) {
  gpu::CpuKernelTable table = kernels::cpu_kernels();
  table.add<call>(kCall);
  return make_cpu_backend(options, table);
}

TEST(CpuBackend, HasTheThreadsThatWereAskedForAndTwoAtLeast) {
  EXPECT_EQ(make({.threads = 3})->sm_count(), 3U);
  EXPECT_GE(make()->sm_count(), 2U);
}

TEST(CpuBackend, DevicePointersAreHostPointers) {
  const auto gpu = make();
  const gpu::DeviceBuffer buffer(*gpu, 8);
  auto* const host = reinterpret_cast<std::uint64_t*>(buffer.ptr().address());

  gpu->memset_blocking(buffer.ptr(), 1, 8);

  EXPECT_EQ(*host, 0x0101'0101'0101'0101U);
}

TEST(CpuBackend, LargeAllocationsAreAlignedToHugePages) {
  const auto gpu = make();
  for (const std::size_t bytes : {std::size_t{2} << 20, (std::size_t{2} << 20) + 1, std::size_t{9} << 20}) {
    const gpu::DeviceBuffer buffer(*gpu, bytes);
    EXPECT_EQ(buffer.ptr().address() % (std::size_t{2} << 20), 0U);
    gpu->memset_blocking(buffer.ptr(), 1, bytes);
  }
}

TEST(CpuBackend, FreshMemoryIsNaNInCheckedBuilds) {
  if (!cpu::kChecks) GTEST_SKIP();
  const auto gpu = make();
  const gpu::DeviceBuffer buffer(*gpu, 64);
  std::array<float, 16> host{};

  gpu->copy_d2h_blocking(std::as_writable_bytes(std::span(host)), buffer.ptr());

  for (const float value : host) EXPECT_TRUE(std::isnan(value));
}

TEST(CpuBackend, FreedMemoryIsNaNInCheckedBuilds) {
  if (!cpu::kChecks || cpu::kAddressSanitizer) GTEST_SKIP();
  const auto gpu = make();
  gpu::DeviceBuffer buffer(*gpu, 64);
  const auto* const stale = reinterpret_cast<const float*>(buffer.ptr().address());
  gpu->memset_blocking(buffer.ptr(), 0, 64);

  buffer.release();

  EXPECT_TRUE(std::isnan(stale[15]));
}

TEST(CpuBackend, CopyIntoMemoryFreedMeanwhileFailsItsStreamInCheckedBuilds) {
  if (!cpu::kChecks) GTEST_SKIP();
  const auto gpu = make();
  const gpu::Stream stream = gpu::make_stream(*gpu);
  const gpu::PinnedBuffer flag(*gpu, sizeof(std::uint32_t));
  gpu::DeviceBuffer buffer(*gpu, 64);
  launch(*gpu, kernels::kWaitOnFlag, stream.ref(), kernels::WaitOnFlagArgs{flag.device_address().address()});
  gpu->memset_async(buffer.ptr(), 1, 64, stream.ref());

  buffer.release();
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(flag.data())).store(1);

  EXPECT_THROW(gpu->synchronize(stream.ref()), DeviceError);
}

// Large copies take another way than small ones.
TEST(CpuBackend, CopiesOfAnySizeMoveTheirBytesAndNoOthers) {
  const auto gpu = make();
  const auto stream = gpu::make_stream(*gpu);
  constexpr std::size_t kMargin = 128;
  constexpr std::size_t kMost = (std::size_t{3} << 20) + 2 * kMargin;
  std::vector<std::byte> source(kMost);
  for (std::size_t i = 0; i < kMost; ++i) source[i] = static_cast<std::byte>(i * 31 + i / 251);
  const gpu::DeviceBuffer buffer(*gpu, kMost);
  const std::span<const std::byte> device(reinterpret_cast<const std::byte*>(buffer.ptr().address()), kMost);
  for (const std::size_t size :
       {std::size_t{1}, (std::size_t{256} << 10) - 1, std::size_t{256} << 10, (std::size_t{300} << 10) + 7,
        (std::size_t{1} << 20) + 1, std::size_t{3} << 20}) {
    for (const std::size_t to : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64}}) {
      for (const std::size_t from : {std::size_t{0}, std::size_t{5}}) {
        gpu->memset_blocking(buffer.ptr(), 0xEE, kMost);
        const std::span<const std::byte> bytes = std::span(source).subspan(from, size);
        gpu->copy_h2d_async_retained(buffer.ptr().offset(to), bytes, stream.ref());
        gpu->synchronize(stream.ref());
        ASSERT_TRUE(std::ranges::equal(device.subspan(to, size), bytes)) << size << " to " << to;
        const auto is_untouched = [](std::byte byte) { return byte == std::byte{0xEE}; };
        ASSERT_TRUE(std::ranges::all_of(device.first(to), is_untouched)) << size << " to " << to;
        ASSERT_TRUE(std::ranges::all_of(device.subspan(to + size, kMargin), is_untouched))
            << size << " to " << to;
      }
    }
  }
}

TEST(CpuBackend, SharesTheHostsMemoryUnlessLimited) {
  const auto gpu = make();
  EXPECT_GT(gpu->free_memory_bytes(), 0U);
  EXPECT_THROW(static_cast<void>(gpu->alloc(std::size_t{1} << 46)), OutOfMemory);
  EXPECT_EQ(make({.max_memory_bytes = 1 << 20})->total_memory_bytes(), 1U << 20);
}

TEST(CpuBackend, DestructionFinishesEnqueuedWork) {
  std::array<std::byte, 1'000> host{};
  {
    const auto gpu = make();
    const gpu::DeviceBuffer buffer(*gpu, host.size());
    const gpu::StreamRef stream = gpu->create_stream();
    gpu->memset_async(buffer.ptr(), 5, host.size(), stream);
    gpu->copy_d2h_async(host, buffer.ptr(), stream);
    gpu->synchronize(stream);
    gpu->memset_async(buffer.ptr(), 6, host.size(), stream);
    gpu->copy_d2h_async(host, buffer.ptr(), stream);
    gpu->destroy_stream(stream);
  }
  EXPECT_EQ(host[999], std::byte{6});
}

TEST(CpuBackend, TableMayDieBeforeTheBackend) {
  std::unique_ptr<gpu::GpuBackend> gpu;
  {
    const gpu::CpuKernelTable table = kernels::cpu_kernels();
    gpu = make_cpu_backend({}, table);
  }
  launch(*gpu, kernels::kEmpty, gpu->default_stream(), kernels::EmptyArgs{});
  gpu->synchronize(gpu->default_stream());
}

TEST(CpuBackend, EveryKernelOfTheTableIsFound) {
  const auto gpu = make();
  const gpu::CpuKernelTable table = kernels::cpu_kernels();
  for (const auto& [name, entry] : table.entries()) {
    EXPECT_FALSE(gpu->kernel(name.first, name.second).is_null());
    EXPECT_TRUE(gpu->has_module(name.first));
  }
}

TEST(CpuBackend, StreamThatIsFedWithoutEndLeavesTheWorkerToOthers) {
  const auto gpu = make({.threads = 1});
  const gpu::Stream busy = gpu::make_stream(*gpu);
  const gpu::Stream other = gpu::make_stream(*gpu);
  std::atomic<bool> other_ran{false};
  const std::function<void()> again = [&] {
    if (!other_ran) enqueue_call(*gpu, busy.ref(), again);
  };
  const std::function<void()> finish = [&] { other_ran = true; };

  enqueue_call(*gpu, busy.ref(), again);
  enqueue_call(*gpu, other.ref(), finish);
  gpu->synchronize(other.ref());
  gpu->synchronize(busy.ref());

  EXPECT_TRUE(other_ran);
}

TEST(CpuBackend, StreamsOutnumberThreads) {
  const auto gpu = make({.threads = 1});
  const gpu::Event event = gpu::make_event(*gpu);
  std::vector<gpu::Stream> chain;
  std::vector<int> order;
  std::vector<std::function<void()>> steps;
  for (int i = 0; i < 40; ++i) {
    chain.push_back(gpu::make_stream(*gpu));
    steps.emplace_back([&order, i] { order.push_back(i); });
  }

  for (std::size_t i = 0; i < chain.size(); ++i) {
    if (i != 0) gpu->stream_wait_event(chain[i].ref(), event.ref());
    enqueue_call(*gpu, chain[i].ref(), steps[i]);
    gpu->record_event(event.ref(), chain[i].ref());
  }
  gpu->synchronize(chain.back().ref());

  ASSERT_EQ(order.size(), 40U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

// Two streams write the same word and nobody waits: with a shuffled schedule the accident happens.
TEST(CpuBackend, ShuffledScheduleShowsAMissingWait) {
  for (std::uint64_t seed = 1; seed < 1'000; ++seed) {
    const auto gpu = make({.schedule_seed = seed});
    const gpu::Stream one = gpu::make_stream(*gpu);
    const gpu::Stream two = gpu::make_stream(*gpu);
    std::atomic<int> last{0};
    const std::function<void()> write_one = [&] { last = 1; };
    const std::function<void()> write_two = [&] { last = 2; };

    enqueue_call(*gpu, one.ref(), write_one);
    enqueue_call(*gpu, two.ref(), write_two);
    gpu->synchronize(one.ref());
    gpu->synchronize(two.ref());

    if (last == 1) return;
  }
  FAIL() << "the streams ran in the order of their calls under every seed";
}

TEST(HostMemory, RangeErrorsNameTheAllocationAndItsCaller) {
  cpu::HostMemory memory(0, 0);
  const DevicePtr ptr = memory.alloc(100, {"somewhere.cpp", 77});

  try {
    static_cast<void>(memory.range(ptr.offset(90), 11, "memset"));
    ADD_FAILURE() << "it was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("somewhere.cpp:77"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("by 1 bytes"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW(static_cast<void>(memory.range(ptr.offset(90), 10, "memset")));
  memory.free(ptr);
}

TEST(HostMemory, BudgetIsNotExceededByThreadsAtOnce) {
  cpu::HostMemory memory(1'000, 0);
  std::vector<std::future<std::uint64_t>> threads;
  for (int i = 0; i < 4; ++i) {
    threads.push_back(std::async(std::launch::async, [&memory] {
      std::uint64_t got = 0;
      for (int round = 0; round < 100; ++round) {
        try {
          static_cast<void>(memory.alloc(30, {}));
          ++got;
        } catch (const OutOfMemory&) {
          break;
        }
      }
      return got;
    }));
  }
  std::uint64_t total = 0;
  for (auto& thread : threads) total += thread.get();

  EXPECT_EQ(total, 33U);
  EXPECT_EQ(memory.free_bytes(), 10U);
  EXPECT_EQ(memory.sweep(), 33U);
}

TEST(CpuStreamFailure, KernelThatFoundNoMemoryHasCudasNumberForIt) {
  const auto code_of = [](auto&& work) {
    try {
      cpu::throw_if_failed(cpu::run_and_catch(work, [] { return std::string("kernel k"); }));
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find("kernel k"), std::string::npos);
      return error.code();
    }
    return 0;
  };
  EXPECT_EQ(code_of([] { throw std::bad_alloc(); }), 2);
  EXPECT_EQ(code_of([] { throw OutOfMemory("host", 100, 0); }), 2);
  EXPECT_EQ(code_of([] { throw std::runtime_error("no"); }), 1);
  EXPECT_EQ(code_of([] {}), 0);
}

}  // namespace
}  // namespace metrale::backends
