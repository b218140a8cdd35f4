// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/kernels/step.h>

#include "kernels/support/kernel_runner.h"

namespace metrale::kernels {
namespace {

using Words = std::vector<std::uint32_t>;

// Applies the deltas to `tables`; of the launch's capacity, `spare` is not used.
void apply(Words& tables, const Words& entries, const Words& blocks, std::uint32_t spare = 0) {
  const auto count = static_cast<std::uint32_t>(entries.size());
  run_kernel(test_pool(), kApplyTableDeltas,
             ApplyTableDeltasArgs{.num_deltas = address(&count),
                                  .entries = address(entries),
                                  .blocks = address(blocks),
                                  .tables = address(tables),
                                  .table_entries = tables.size(),
                                  .max_deltas = count + spare,
                                  .reserved = 0});
}

TEST(ApplyTableDeltas, WritesTheNamedEntriesAndNoOther) {
  Words tables{10, 11, 12, 13, 14, 15};

  apply(tables, {5, 0, 3}, {95, 90, 93}, 4);

  EXPECT_THAT(tables, testing::ElementsAre(90, 11, 12, 93, 14, 95));
}

TEST(ApplyTableDeltas, ChangesNothingForNoDeltas) {
  Words tables{1, 2};

  apply(tables, {}, {});

  EXPECT_THAT(tables, testing::ElementsAre(1, 2));
}

TEST(ApplyTableDeltas, AgreesWithTheModelOnRandomSteps) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Words tables(1 + random() % 5000);
    for (std::uint32_t& block : tables) block = static_cast<std::uint32_t>(random());
    Words model = tables;
    Words entries(tables.size());
    std::iota(entries.begin(), entries.end(), 0U);
    std::shuffle(entries.begin(), entries.end(), random);
    entries.resize(random() % (entries.size() + 1));
    Words blocks(entries.size());
    for (std::uint32_t& block : blocks) block = static_cast<std::uint32_t>(random());
    for (std::size_t i = 0; i < entries.size(); ++i) model[entries[i]] = blocks[i];

    apply(tables, entries, blocks);

    ASSERT_EQ(tables, model) << "seed " << seed;
  }
}

TEST(ApplyTableDeltas, RejectsAnEntryBeyondTheTablesAndWritesNothing) {
  Words tables{1, 2, 3};

  EXPECT_THAT([&] { apply(tables, {0, 3}, {7, 8}); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("entry 3 of delta 1 is beyond")));

  EXPECT_THAT(tables, testing::ElementsAre(1, 2, 3));
}

TEST(ApplyTableDeltas, RejectsMoreDeltasThanTheLaunchWasMadeFor) {
  const std::uint32_t count = 5;
  ApplyTableDeltasArgs args{};
  args.num_deltas = address(&count);
  args.max_deltas = 4;
  EXPECT_THAT([&] { run_kernel(test_pool(), kApplyTableDeltas, args); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("apply_table_deltas: 5 rows")));
}

TEST(StepLayout, GivesEveryArrayRoomForItsCapacityOnItsOwnCacheLines) {
  const StepLayout layout = step_layout(33, 5, 70);
  const std::vector<std::pair<std::size_t, std::size_t>> arrays{{layout.counts, sizeof(StepCounts)},
                                                                {layout.token_ids, 33 * 4},
                                                                {layout.positions, 33 * 4},
                                                                {layout.slots, 33 * 8},
                                                                {layout.query_starts, 6 * 4},
                                                                {layout.context_lens, 5 * 4},
                                                                {layout.table_rows, 5 * 4},
                                                                {layout.logit_rows, 33 * 4},
                                                                {layout.delta_entries, 70 * 4},
                                                                {layout.delta_blocks, 70 * 4},
                                                                {layout.total_bytes, 0}};
  for (std::size_t i = 0; i + 1 < arrays.size(); ++i) {
    EXPECT_EQ(arrays[i].first % 64, 0U) << "array " << i;
    EXPECT_LE(arrays[i].first + arrays[i].second, arrays[i + 1].first) << "array " << i;
  }
  EXPECT_EQ(layout.max_deltas, 70U);
}

}  // namespace
}  // namespace metrale::kernels
