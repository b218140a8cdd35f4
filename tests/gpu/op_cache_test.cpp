// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/fault.h>
#include <metrale/gpu/mock.h>
#include <metrale/gpu/op_cache.h>

namespace metrale::gpu {
namespace {

TEST(OpCache, KernelIsLookedUpOnce) {
  const auto gpu = make_mock_backend();

  const KernelHandle first = gpu->op_cache().kernel(*gpu, "norm", "rms_norm");
  const KernelHandle second = gpu->op_cache().kernel(*gpu, "norm", "rms_norm");

  EXPECT_EQ(first, second);
  EXPECT_EQ(gpu->lookups().size(), 1U);
}

TEST(OpCache, NamesAreNotConfusedAtTheirBorder) {
  const auto gpu = make_mock_backend();
  EXPECT_NE(gpu->op_cache().kernel(*gpu, "ab", "c"), gpu->op_cache().kernel(*gpu, "a", "bc"));
}

TEST(OpCache, FailedLookUpIsNotRemembered) {
  const auto gpu = make_mock_backend();
  gpu->deny_kernel("norm", "missing");

  EXPECT_THROW(static_cast<void>(gpu->op_cache().kernel(*gpu, "norm", "missing")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(gpu->op_cache().kernel(*gpu, "norm", "missing")), InvalidArgument);

  EXPECT_EQ(gpu->lookups().size(), 2U);
}

TEST(OpCache, ScratchOfEnoughBytesIsHandedOutAgain) {
  const auto gpu = make_mock_backend();
  const DevicePtr first = gpu->op_cache().scratch(*gpu, "splitk", 100);

  EXPECT_EQ(gpu->op_cache().scratch(*gpu, "splitk", 50), first);
  EXPECT_NE(gpu->op_cache().scratch(*gpu, "other", 50), first);
}

TEST(OpCache, GrownScratchLeavesTheOldAddressAlive) {
  const auto gpu = make_mock_backend();
  const DevicePtr small = gpu->op_cache().scratch(*gpu, "splitk", 100);
  const DevicePtr large = gpu->op_cache().scratch(*gpu, "splitk", 200);

  EXPECT_NE(small, large);
  EXPECT_NO_THROW(gpu->memset_blocking(small, 0, 100));
  EXPECT_EQ(gpu->op_cache().scratch(*gpu, "splitk", 150), large);
}

TEST(OpCache, FailedGrowthKeepsTheOldScratch) {
  const auto gpu = make_mock_backend({.max_alloc_bytes = 150});
  const DevicePtr small = gpu->op_cache().scratch(*gpu, "splitk", 100);

  EXPECT_THROW(static_cast<void>(gpu->op_cache().scratch(*gpu, "splitk", 200)), OutOfMemory);

  EXPECT_EQ(gpu->op_cache().scratch(*gpu, "splitk", 100), small);
}

TEST(OpCache, ReleaseFreesGrownAndOutgrownScratchAndMayBeRepeated) {
  const auto gpu = make_mock_backend();
  static_cast<void>(gpu->op_cache().scratch(*gpu, "a", 100));
  static_cast<void>(gpu->op_cache().scratch(*gpu, "a", 200));
  static_cast<void>(gpu->op_cache().scratch(*gpu, "b", 100));

  gpu->op_cache().release(*gpu);
  gpu->op_cache().release(*gpu);

  EXPECT_EQ(gpu->live_alloc_count(), 0U);
}

TEST(OpCache, ReleaseGoesOnAfterAFailure) {
  const auto inner = make_mock_backend();
  const auto gpu = make_fault_backend(*inner);
  static_cast<void>(gpu->op_cache().scratch(*gpu, "a", 100));
  static_cast<void>(gpu->op_cache().scratch(*gpu, "b", 100));
  gpu->fail_nth(FaultPoint::kFree, 1);

  EXPECT_THROW(gpu->op_cache().release(*gpu), DeviceError);

  EXPECT_EQ(inner->live_alloc_count(), 0U);
}

TEST(OpCache, GatesOpenAsOftenAsTheySay) {
  OpCache cache;

  EXPECT_TRUE(cache.once("a"));
  EXPECT_FALSE(cache.once("a"));
  EXPECT_TRUE(cache.once("b"));
  EXPECT_TRUE(cache.first_n("c", 2));
  EXPECT_TRUE(cache.first_n("c", 2));
  EXPECT_FALSE(cache.first_n("c", 2));
  EXPECT_TRUE(cache.first_shape("gemm", 1, 2, 3));
  EXPECT_FALSE(cache.first_shape("gemm", 1, 2, 3));
  EXPECT_TRUE(cache.first_shape("gemm", 1, 2, 4));
}

}  // namespace
}  // namespace metrale::gpu
