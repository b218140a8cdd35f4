// SPDX-License-Identifier: Apache-2.0
// Where the CPU backend's threads run and its memory lies.
#include <array>
#include <cerrno>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/backends/cpu.h>
#include <metrale/base/error.h>
#include <metrale/base/thread_pool.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/kernel.h>

namespace metrale::backends {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct WhereArgs {
  std::uint64_t cpus;  // CpuList*
};
constexpr gpu::KernelId<WhereArgs> kWhere{"test_host", "where"};
gpu::LaunchShape launch_shape(const WhereArgs&) {
  return {};
}
void where(ThreadPool&, const WhereArgs& args) {
  *reinterpret_cast<CpuList*>(args.cpus) = usable_cpus();
}

std::unique_ptr<gpu::GpuBackend> make(const CpuBackendOptions& options) {
  gpu::CpuKernelTable table;
  table.add<where>(kWhere);
  return make_cpu_backend(options, table);
}

struct Policy {
  int mode = -1;
  unsigned long nodes = 0;
};

// That of the page at `ptr`.
Policy policy_of(DevicePtr ptr) {
  Policy policy;
  std::array<unsigned long, 16> nodes{};
  if (::syscall(SYS_get_mempolicy, &policy.mode, nodes.data(), 8 * sizeof nodes + 1, ptr.address(),
                MPOL_F_ADDR) == 0) {
    policy.nodes = nodes[0];
  }
  return policy;
}

bool system_has_policies() {
  return ::syscall(SYS_get_mempolicy, nullptr, nullptr, 0, nullptr, 0) == 0 || errno != ENOSYS;
}

TEST(CpuPlacement, KernelsRunOnTheCpusThatWereGiven) {
  const unsigned cpu = usable_cpus().back();
  const auto gpu = make({.cpus = {cpu}});
  CpuList seen;

  launch(*gpu, kWhere, gpu->default_stream(), WhereArgs{.cpus = reinterpret_cast<std::uintptr_t>(&seen)});
  gpu->synchronize(gpu->default_stream());

  EXPECT_EQ(seen, CpuList{cpu});
}

TEST(CpuPlacement, ACpuThatDoesNotExistIsRefused) {
  EXPECT_THAT([] { (void)make({.cpus = {1023}}); }, ThrowsMessage<InvalidArgument>(HasSubstr("CPU 1023")));
}

TEST(CpuPlacement, LargeAllocationsTakeTheirPolicy) {
  if (!system_has_policies()) GTEST_SKIP() << "the system has no memory policies";
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  for (const auto& [policy, mode] :
       {std::pair(NumaPolicy::kNone, MPOL_DEFAULT), std::pair(NumaPolicy::kInterleave, MPOL_INTERLEAVE),
        std::pair(NumaPolicy::kBind, MPOL_BIND)}) {
    const auto gpu = make({.numa = policy});
    const gpu::DeviceBuffer buffer(*gpu, kBytes);
    const Policy seen = policy_of(buffer.ptr());
    EXPECT_EQ(seen.mode, mode) << to_string(policy);
    EXPECT_EQ(seen.nodes != 0, policy != NumaPolicy::kNone) << to_string(policy);
    EXPECT_EQ(policy_of(DevicePtr(buffer.ptr().address() + kBytes - 1)).mode, mode) << to_string(policy);
  }
}

TEST(CpuPlacement, PolicyNamesReadAsTheyAreWritten) {
  for (const NumaPolicy policy : {NumaPolicy::kNone, NumaPolicy::kInterleave, NumaPolicy::kBind}) {
    EXPECT_EQ(parse_numa_policy(to_string(policy)), policy);
  }
  EXPECT_THAT([] { (void)parse_numa_policy("far"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("interleave")));
}

}  // namespace
}  // namespace metrale::backends
