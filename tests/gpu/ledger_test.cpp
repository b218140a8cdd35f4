// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <metrale/gpu/ledger.h>

namespace metrale::gpu {
namespace {

constexpr CallSite kHere{"here.cpp", 10};
constexpr CallSite kThere{"there.cpp", 20};

TEST(AllocationLedger, CountsWhatIsLive) {
  AllocationLedger ledger;
  ledger.add(DevicePtr(0x1000), 100, kHere);
  ledger.add(DevicePtr(0x2000), 50, kHere);

  ASSERT_TRUE(ledger.remove(DevicePtr(0x1000)).has_value());

  EXPECT_EQ(ledger.live_bytes(), 50U);
  EXPECT_EQ(ledger.live_count(), 1U);
  EXPECT_EQ(ledger.removals(), 1U);
}

TEST(AllocationLedger, RemovesByBaseOnlyAndOnce) {
  AllocationLedger ledger;
  ledger.add(DevicePtr(0x1000), 100, kHere);

  EXPECT_FALSE(ledger.remove(DevicePtr(0x1001)).has_value());
  EXPECT_TRUE(ledger.remove(DevicePtr(0x1000)).has_value());
  EXPECT_FALSE(ledger.remove(DevicePtr(0x1000)).has_value());
  EXPECT_EQ(ledger.removals(), 1U);
}

TEST(AllocationLedger, InteriorAddressFindsItsAllocation) {
  AllocationLedger ledger;
  ledger.add(DevicePtr(0x1000), 0x100, kHere);
  ledger.add(DevicePtr(0x2000), 0x100, kThere);

  EXPECT_FALSE(ledger.containing(0xFFF).has_value());
  EXPECT_EQ(ledger.containing(0x1000)->base, DevicePtr(0x1000));
  EXPECT_EQ(ledger.containing(0x10FF)->base, DevicePtr(0x1000));
  EXPECT_FALSE(ledger.containing(0x1100).has_value());
  EXPECT_EQ(ledger.containing(0x2080)->site.line, 20U);
}

TEST(AllocationLedger, IdsAreNeverUsedTwice) {
  AllocationLedger ledger;
  const std::uint64_t first = ledger.add(DevicePtr(0x1000), 1, kHere);
  static_cast<void>(ledger.remove(DevicePtr(0x1000)));
  const std::uint64_t second = ledger.add(DevicePtr(0x1000), 1, kHere);

  EXPECT_EQ(first, 1U);
  EXPECT_EQ(second, 2U);
  EXPECT_FALSE(ledger.is_live(first));
  EXPECT_TRUE(ledger.is_live(second));
}

TEST(AllocationLedger, ReportGroupsBySiteLargestFirst) {
  AllocationLedger ledger;
  ledger.add(DevicePtr(0x1000), 10, kHere);
  ledger.add(DevicePtr(0x2000), 30, kThere);
  ledger.add(DevicePtr(0x3000), 15, kHere);
  ledger.add(DevicePtr(0x4000), 1, {"tiny.cpp", 1});

  const auto rows = ledger.report(10, 2);

  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].site.line, 20U);
  EXPECT_EQ(rows[0].bytes, 30U);
  EXPECT_EQ(rows[1].bytes, 25U);
  EXPECT_EQ(rows[1].count, 2U);
  EXPECT_EQ(ledger.report(1, 0).size(), 1U);
}

}  // namespace
}  // namespace metrale::gpu
