// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include <metrale/kernels/step.h>

#include "cuda/support/parity.h"

namespace metrale::kernels {
namespace {

using Words = std::vector<std::uint32_t>;

ApplyTableDeltasArgs delta_args(DeviceRun& run, std::uint64_t tables, std::uint64_t table_entries,
                                const Words& entries, const Words& blocks) {
  const auto count = static_cast<std::uint32_t>(entries.size());
  return {.num_deltas = run.put(count),
          .entries = run.put(entries),
          .blocks = run.put(blocks),
          .tables = tables,
          .table_entries = table_entries,
          .max_deltas = count + 5,
          .reserved = 0};
}

Words apply(gpu::GpuBackend& gpu, const Words& tables, const Words& entries, const Words& blocks) {
  DeviceRun run(gpu);
  const std::uint64_t on_device = run.put(tables);
  run.run(kApplyTableDeltas, delta_args(run, on_device, tables.size(), entries, blocks));
  return run.get<std::uint32_t>(on_device, tables.size());
}

TEST(CudaApplyTableDeltas, AgreesWithTheCpuOnRandomSteps) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Words tables(1 + random() % 5000);
    for (std::uint32_t& block : tables) block = static_cast<std::uint32_t>(random());
    Words entries(tables.size());
    std::iota(entries.begin(), entries.end(), 0U);
    std::shuffle(entries.begin(), entries.end(), random);
    entries.resize(random() % (entries.size() + 1));
    Words blocks(entries.size());
    for (std::uint32_t& block : blocks) block = static_cast<std::uint32_t>(random());

    ASSERT_EQ(apply(cuda_backend(), tables, entries, blocks), apply(cpu_backend(), tables, entries, blocks))
        << "seed " << seed;
  }
}

TEST(CudaApplyTableDeltas, ReachesEntriesBeyondTwoGibibytes) {
  gpu::GpuBackend& gpu = cuda_backend();
  DeviceRun run(gpu);
  const std::uint64_t entries = kBeyond31Bits / 4 + 16;
  const BigBuffer tables(gpu, entries * 4);

  const auto last = static_cast<std::uint32_t>(entries - 1);
  run.run(kApplyTableDeltas, delta_args(run, tables.address(), entries, {last, 0}, {77, 78}));

  EXPECT_EQ(run.get<std::uint32_t>(tables.address(), 2), (Words{78, ~0U}));
  EXPECT_EQ(run.get<std::uint32_t>(tables.address() + (entries - 2) * 4, 2), (Words{~0U, 77}));
}

TEST(CudaApplyTableDeltas, ReportsAnEntryBeyondTheTables) {
  OwnBackend own;
  const std::uint64_t tables = own.run.put(Words{1, 2, 3});
  own.expect_fault(kApplyTableDeltas, delta_args(own.run, tables, 3, {0, 3}, {7, 8}), "entry 3 of delta 1");
}

}  // namespace
}  // namespace metrale::kernels
