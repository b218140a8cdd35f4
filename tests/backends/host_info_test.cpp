// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/host_info.h"

#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace metrale::backends::cpu {
namespace {

constexpr std::uint64_t kKib = 1024;

class HostInfoTest : public testing::Test {
 protected:
  HostInfoTest() {
    root_.write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    800 kB\n");
  }
  TempDir root_;
};

TEST_F(HostInfoTest, WithoutGroupsTheMachineDecides) {
  const HostMemoryInfo info = host_memory_info(root_.path());
  EXPECT_EQ(info.total_bytes, 1000 * kKib);
  EXPECT_EQ(info.available_bytes, 800 * kKib);
}

TEST_F(HostInfoTest, LimitOfAnyGroupAboveCounts) {
  root_.write("proc/self/cgroup", "0::/a/b\n");
  root_.write("sys/fs/cgroup/a/b/memory.max", "max\n");
  root_.write("sys/fs/cgroup/a/memory.max", "204800\n");
  root_.write("sys/fs/cgroup/a/memory.current", "102400\n");
  root_.write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 51200\n");

  const HostMemoryInfo info = host_memory_info(root_.path());

  EXPECT_EQ(info.total_bytes, 200 * kKib);
  EXPECT_EQ(info.available_bytes, 150 * kKib);
}

TEST_F(HostInfoTest, LimitAtTheTopOfTheGroupsCounts) {
  root_.write("proc/self/cgroup", "0::/\n");
  root_.write("sys/fs/cgroup/memory.max", "102400\n");
  root_.write("sys/fs/cgroup/memory.current", "204800\n");

  const HostMemoryInfo info = host_memory_info(root_.path());

  EXPECT_EQ(info.total_bytes, 100 * kKib);
  EXPECT_EQ(info.available_bytes, 0U) << "more is in use than the limit allows";
}

TEST_F(HostInfoTest, OldHierarchyCounts) {
  root_.write("proc/self/cgroup", "5:memory:/docker/x\n");
  root_.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "102400\n");
  root_.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "51200\n");
  root_.write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 10240\n");

  const HostMemoryInfo info = host_memory_info(root_.path());

  EXPECT_EQ(info.total_bytes, 100 * kKib);
  EXPECT_EQ(info.available_bytes, 60 * kKib);
}

TEST_F(HostInfoTest, LimitAboveTheMachineIsNone) {
  root_.write("sys/fs/cgroup/memory.max", "9223372036854771712\n");
  EXPECT_EQ(host_memory_info(root_.path()).total_bytes, 1000 * kKib);
}

TEST(HostInfo, ThisMachineHasMemory) {
  const HostMemoryInfo info = host_memory_info();
  EXPECT_GT(info.available_bytes, 0U);
  EXPECT_LE(info.available_bytes, info.total_bytes);
}

}  // namespace
}  // namespace metrale::backends::cpu
