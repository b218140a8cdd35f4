// SPDX-License-Identifier: Apache-2.0
// The host's memory runs out after the driver has given some: nothing of it stays behind. A program of its
// own.
#include <support/failing_new.h>

#include "backends/fake_cuda_test.h"

namespace metrale::test {
namespace {

constexpr std::uint64_t kLimit = 1 << 20;

struct CudaAllocationFailures : FakeCudaTest {
  std::unique_ptr<gpu::GpuBackend> gpu = open_fake_backend({.max_memory_bytes = kLimit});
  void TearDown() override {
    gpu.reset();
    expect_nothing_alive();
  }

  // Lets each of the last `count` allocations of the host that the call makes fail in turn: those come after
  // the driver's part.
  template <class Call, class Undo>
  void fail_last(int count, const Call& call, const Undo& undo) {
    undo(call());  // what is made once only
    allocations = 0;
    const auto made = call();
    const int in_all = allocations;
    undo(made);
    ASSERT_GE(in_all, count);
    for (int before = in_all - count; before < in_all; ++before) {
      allocations_left = before;
      try {
        undo(call());
        allocations_left = -1;
        ADD_FAILURE() << "allocation " << before << " of " << in_all << " is not made any more";
      } catch (const std::bad_alloc&) {
        allocations_left = -1;
      }
      EXPECT_EQ(fake_cuda_live().allocations, 0) << "allocation " << before << " of " << in_all;
      EXPECT_EQ(fake_cuda_live().pinned, pinned_) << "allocation " << before << " of " << in_all;
      EXPECT_EQ(gpu->free_memory_bytes(), kLimit);
    }
    undo(call());
  }

 private:
  const int pinned_ = fake_cuda_live().pinned;  // the backend's own
};

TEST_F(CudaAllocationFailures, OfTheLedgerGivesDeviceMemoryBack) {
  fail_last(2, [&] { return gpu->alloc(4096); }, [&](DevicePtr ptr) { gpu->free(ptr); });
}

TEST_F(CudaAllocationFailures, OfTheLedgerGivesTheArenaBack) {
  fail_last(2, [&] { return gpu->alloc_arena(4096); }, [&](DevicePtr ptr) { gpu->free_arena(ptr); });
}

TEST_F(CudaAllocationFailures, OfTheBooksGivesPinnedMemoryBack) {
  fail_last(
      3, [&] { return gpu->alloc_pinned(4096); },
      [&](std::span<std::byte> memory) { gpu->free_pinned(memory); });
}

}  // namespace
}  // namespace metrale::test
