// SPDX-License-Identifier: Apache-2.0
#include "io/progress.h"

#include <gtest/gtest.h>

namespace metrale::io {
namespace {

using Step = Progress::Step;

TEST(Progress, AsksForAGibibyteAtMost) {
  constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
  Progress progress(IoKind::kRead, 2 * kGib + 5, 512);

  EXPECT_EQ(progress.next().bytes, kGib);
  EXPECT_EQ(progress.take(static_cast<std::int64_t>(kGib)), Step::kMore);
  EXPECT_EQ(progress.take(static_cast<std::int64_t>(kGib)), Step::kMore);
  EXPECT_EQ(progress.next().at, 2 * kGib);
  EXPECT_EQ(progress.next().bytes, 5U);
  EXPECT_EQ(progress.take(5), Step::kDone);
}

TEST(Progress, StepsBackToTheGranule) {
  Progress progress(IoKind::kRead, 4'096, 512);

  EXPECT_EQ(progress.take(1'000), Step::kMore);

  EXPECT_EQ(progress.next().at, 512U);
  EXPECT_EQ(progress.next().bytes, 4'096U - 512U);
  EXPECT_EQ(progress.take(4'096 - 512), Step::kDone);
}

TEST(Progress, ReadThatBringsNoMoreHasReachedTheEnd) {
  Progress unaligned(IoKind::kRead, 4'096, 512);
  EXPECT_EQ(unaligned.take(1'000), Step::kMore);
  EXPECT_EQ(unaligned.take(488), Step::kEndOfFile);
  EXPECT_EQ(unaligned.done_bytes(), 1'000U);

  Progress buffered(IoKind::kRead, 4'096, 1);
  EXPECT_EQ(buffered.take(1'000), Step::kMore);
  EXPECT_EQ(buffered.take(0), Step::kEndOfFile);
  EXPECT_EQ(buffered.done_bytes(), 1'000U);
}

TEST(Progress, WriteThatBringsNothingFailsInTheEnd) {
  Progress progress(IoKind::kWrite, 100, 1);
  Step step = Step::kMore;
  for (int i = 0; i < 2'000 && step == Step::kMore; ++i) step = progress.take(0);

  EXPECT_EQ(step, Step::kFailed);
  EXPECT_EQ(progress.error_number(), EIO);
}

TEST(Progress, ProgressForgivesEarlierInterruptions) {
  Progress progress(IoKind::kRead, 10, 1);
  for (int byte = 0; byte < 9; ++byte) {
    for (int i = 0; i < 900; ++i) EXPECT_EQ(progress.take(-EINTR), Step::kMore);
    EXPECT_EQ(progress.take(1), Step::kMore);
  }
  EXPECT_EQ(progress.take(1), Step::kDone);
}

TEST(Progress, MoreThanWasAskedIsAnError) {
  Progress progress(IoKind::kRead, 10, 1);

  EXPECT_EQ(progress.take(11), Step::kFailed);

  EXPECT_EQ(progress.error_number(), EIO);
  EXPECT_EQ(progress.done_bytes(), 0U);
}

TEST(Progress, CodeOfALibraryIsKept) {
  Progress progress(IoKind::kRead, 10, 1);

  EXPECT_EQ(progress.take(-5'011), Step::kFailed);

  EXPECT_EQ(progress.error_number(), EIO);
  EXPECT_EQ(progress.library_code(), 5'011);
}

}  // namespace
}  // namespace metrale::io
