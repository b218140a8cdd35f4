// SPDX-License-Identifier: Apache-2.0
// What every queue does with an engine that answers badly.
#include <cerrno>

#include "conformance/io_queue_conformance.h"

namespace metrale::io {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

TEST_P(IoQueueFaults, ShortReadIsContinued) {
  faults_->inject(IoFault::kShort, 1, 1'000);
  faults_->inject(IoFault::kShort, 2, 1);

  expect_whole(run(read_request(id_, 50, page(0))));

  EXPECT_EQ(faults_->transfers(), 3U);
  EXPECT_EQ(queue_->stats().short_transfers, 2U);
}

TEST_P(IoQueueFaults, ShortWriteIsContinued) {
  faults_->inject(IoFault::kShort, 1, 1'000);
  std::fill_n(page(0).begin(), kPage, std::byte{5});

  const Completion done = run(write_request(id_, 50, page(0)));

  EXPECT_EQ(done.status, IoStatus::kComplete);
  EXPECT_THAT(content(file_, kPage, 50), testing::Each(std::byte{5}));
}

TEST_P(IoQueueFaults, DirectTransferIsContinuedAtItsAlignment) {
  std::optional<File> direct = File::try_open_direct(file_.path(), OpenMode::kReadWrite);
  if (!direct) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  const FileId id = queue_->register_file(*direct);
  // Without a length the engine ends the transfer anywhere.
  for (int i = 0; i < 40; ++i) {
    std::fill_n(memory_.span().begin(), kBytes, std::byte{0});
    faults_->inject(IoFault::kShort, 1);
    expect_whole(run(read_request(id, 0, page(0, 16))));
  }
  EXPECT_EQ(faults_->injected(IoFault::kShort), 40U);
  EXPECT_GE(queue_->stats().short_transfers, 40U);
}

TEST_P(IoQueueFaults, InterruptedTransfersAreRetried) {
  for (const int error : {EINTR, EAGAIN, ECANCELED}) {
    faults_->inject(IoFault::kError, 1, static_cast<std::uint32_t>(error));
    expect_whole(run(read_request(id_, 0, page(0))));
  }
  EXPECT_EQ(queue_->stats().retries, 3U);
}

TEST_P(IoQueueFaults, EndlessInterruptionsEndInAnError) {
  for (std::uint64_t i = 1; i <= 1'000; ++i) faults_->inject(IoFault::kError, i, EAGAIN);

  const Completion done = run(read_request(id_, 0, page(0)));

  EXPECT_EQ(done.status, IoStatus::kFailed);
  EXPECT_EQ(done.error_number, EAGAIN);
}

TEST_P(IoQueueFaults, ErrorNamesPathOffsetAndCause) {
  faults_->inject(IoFault::kShort, 1, 1'000);
  faults_->inject(IoFault::kError, 2, EIO);

  const Completion done = run(read_request(id_, 100, page(0)));

  EXPECT_EQ(done.status, IoStatus::kFailed);
  EXPECT_EQ(done.error_number, EIO);
  EXPECT_EQ(done.bytes, 1'000U);
  const IoError error = queue_->error_of(done);
  EXPECT_EQ(error.path(), file_.path());
  EXPECT_EQ(error.offset(), 1'100U);
  EXPECT_EQ(error.error_number(), EIO);
  EXPECT_THAT(error.what(), HasSubstr("cannot read"));
  EXPECT_THAT(error.what(), HasSubstr("4096 bytes wanted from byte 100, 1000 transferred"));
}

TEST_P(IoQueueFaults, FullDiskFailsTheWriteAfterAShortOne) {
  faults_->inject(IoFault::kShort, 1, 512);
  faults_->inject(IoFault::kError, 2, ENOSPC);

  const Completion done = run(write_request(id_, 0, page(0)));

  EXPECT_EQ(done.status, IoStatus::kFailed);
  EXPECT_EQ(done.error_number, ENOSPC);
  EXPECT_EQ(done.bytes, 512U);
  EXPECT_THAT(queue_->error_of(done).what(), HasSubstr("cannot write"));
}

TEST_P(IoQueueFaults, RefusedFirstTransferIsAnErrorThatACallerCanFallBackFrom) {
  faults_->inject(IoFault::kError, 1, EINVAL);

  const Completion refused = run(read_request(id_, 0, page(0)));

  EXPECT_EQ(refused.error_number, EINVAL);
  EXPECT_EQ(refused.bytes, 0U);
  expect_whole(run(read_request(id_, refused.offset, page(0))));
}

TEST_P(IoQueueFaults, OneFailureLeavesTheOthersAlone) {
  faults_->inject(IoFault::kError, 2, EIO);
  for (std::size_t i = 0; i < 4; ++i) prepare(read_request(id_, i * kPage, page(i), i));

  const std::vector<Completion> done = finish(4);

  ASSERT_EQ(done.size(), 4U);
  for (const Completion& completion : done) {
    EXPECT_EQ(completion.status == IoStatus::kFailed, completion.user_data == 1) << completion.user_data;
  }
}

TEST_P(IoQueueFaults, StaleAnswerIsRefused) {
  expect_whole(run(read_request(id_, 0, page(0))));
  faults_->inject(IoFault::kStale, 1);

  expect_whole(run(read_request(id_, kPage, page(0))));

  EXPECT_EQ(queue_->stats().refused_answers, 1U);
  EXPECT_EQ(queue_->stats().completed, 2U);
}

TEST_P(IoQueueFaults, DuplicateAnswerIsDeliveredOnce) {
  for (int i = 0; i < 20; ++i) {
    faults_->inject(IoFault::kDuplicate, 1);
    expect_whole(run(read_request(id_, 0, page(0))));
  }
  std::vector<Completion> out(1);

  EXPECT_EQ(queue_->poll(out, 1), 0U);

  EXPECT_EQ(queue_->stats().completed, 20U);
  EXPECT_GE(queue_->stats().refused_answers, 19U);  // the last one may still be on its way
}

TEST_P(IoQueueFaults, AnswersInAnotherOrderBelongToTheirRequests) {
  for (std::uint64_t i = 1; i <= 4; ++i) faults_->inject(IoFault::kLate, i);
  for (std::size_t i = 0; i < 8; ++i) prepare(read_request(id_, i * kPage, page(i), i));

  const std::vector<Completion> done = finish(8);

  ASSERT_EQ(done.size(), 8U);
  for (const Completion& completion : done) {
    const std::size_t i = completion.user_data;
    EXPECT_THAT(copy_of(page(i)), ElementsAreArray(numbered_bytes(kPage, i * kPage)));
  }
}

TEST_P(IoQueueFaults, EngineThatIsBusyIsAskedAgain) {
  for (std::uint64_t i = 1; i <= 10; ++i) faults_->inject(IoFault::kRefused, i);

  expect_whole(run(read_request(id_, 0, page(0))));

  EXPECT_EQ(faults_->transfers(), 11U);
}

TEST_P(IoQueueFaults, EngineThatStaysBusyIsAnError) {
  for (std::uint64_t i = 1; i <= 1'001; ++i) faults_->inject(IoFault::kRefused, i);
  prepare(read_request(id_, 0, page(0)));
  queue_->submit();
  std::vector<Completion> out(1);

  EXPECT_THROW(static_cast<void>(queue_->poll(out, 1)), IoError);

  queue_->drain();
  EXPECT_EQ(queue_->used_slots(), 0U);
}

TEST_P(IoQueueFaults, QueueEndsWhileAnswersAreBad) {
  for (std::uint64_t i = 1; i <= 8; ++i) {
    faults_->inject(i % 2 == 0 ? IoFault::kDuplicate : IoFault::kError, i, EINTR);
  }
  for (std::size_t i = 0; i < 8; ++i) prepare(read_request(id_, 0, page(i)));
  queue_->submit();

  queue_.reset();
}

}  // namespace
}  // namespace metrale::io
