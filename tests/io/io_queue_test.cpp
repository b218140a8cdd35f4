// SPDX-License-Identifier: Apache-2.0
// The queue over an engine that answers exactly what a test says.
#include <array>
#include <cerrno>
#include <deque>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/io/io_queue.h>

#include "support/temp_dir.h"

namespace metrale::io {
namespace {

class ScriptedEngine final : public IoEngine {
 public:
  ScriptedEngine() : IoEngine({.depth = 4, .max_files = 2, .max_buffers = 2}) {}

  std::vector<RawTransfer> taken;
  std::deque<RawCompletion> answers;
  bool fails_to_reap = false;
  bool refuses_files = false;
  std::vector<IoTime> deadlines;

  void answer(std::size_t transfer, std::int64_t result) {
    answers.push_back({taken.at(transfer).tag, result});
  }

 private:
  std::string_view do_name() const override { return "scripted"; }
  IoCapabilities do_capabilities() const override { return {.max_depth = limits().depth}; }
  bool do_register_file(std::uint32_t, int, const std::string& path) override {
    if (refuses_files) throw IoError("cannot register", path, EINVAL);
    return false;
  }
  std::size_t do_submit(std::span<const RawTransfer> transfers) override {
    taken.insert(taken.end(), transfers.begin(), transfers.end());
    return transfers.size();
  }
  std::size_t do_reap(std::span<RawCompletion> out, IoTime deadline) override {
    deadlines.push_back(deadline);
    if (fails_to_reap) throw IoError("cannot enter", "scripted", EBADF);
    std::size_t count = 0;
    while (count < out.size() && !answers.empty()) {
      out[count++] = answers.front();
      answers.pop_front();
    }
    return count;
  }
};

class IoQueueTest : public testing::Test {
 protected:
  IoQueueTest() {
    auto engine = std::make_unique<ScriptedEngine>();
    engine_ = engine.get();
    queue_ = std::make_unique<IoQueue>(std::move(engine));
    id_ = queue_->register_file(file_);
  }
  void TearDown() override {
    if (queue_) engine_->fails_to_reap = true;  // so that what is not answered does not block
  }

  RequestId submit_read(std::uint64_t offset = 0) {
    const RequestId request = queue_->prepare(read_request(id_, offset, memory_)).value();
    queue_->submit();
    return request;
  }
  std::size_t poll(std::size_t at_least = 0, IoTime deadline = kNoWait) {
    return queue_->poll(out_, at_least, deadline);
  }

  TempDir dir_;
  File file_ = File::open(dir_.write("file", "0123456789"), OpenMode::kRead);
  std::array<std::byte, 100> memory_{};
  std::array<Completion, 4> out_{};
  ScriptedEngine* engine_ = nullptr;
  std::unique_ptr<IoQueue> queue_;
  FileId id_;
};

TEST_F(IoQueueTest, ContinuesWhereTheAnswerEnded) {
  submit_read(1'000);
  engine_->answer(0, 30);
  EXPECT_EQ(poll(), 0U);

  ASSERT_EQ(engine_->taken.size(), 2U);
  EXPECT_EQ(engine_->taken[1].offset, 1'030U);
  EXPECT_EQ(engine_->taken[1].address, engine_->taken[0].address + 30);
  EXPECT_EQ(engine_->taken[1].bytes, 70U);
  EXPECT_NE(engine_->taken[1].tag, engine_->taken[0].tag);
  engine_->answer(1, 70);
  EXPECT_EQ(poll(), 1U);
  EXPECT_EQ(out_[0].bytes, 100U);
}

TEST_F(IoQueueTest, AnswerToAnEarlierAttemptIsRefused) {
  submit_read();
  engine_->answer(0, 30);
  engine_->answer(0, 100);
  EXPECT_EQ(poll(), 0U);

  EXPECT_EQ(queue_->stats().refused_answers, 1U);
  EXPECT_EQ(queue_->used_slots(), 1U);
  engine_->answer(1, 70);
  EXPECT_EQ(poll(), 1U);
}

TEST_F(IoQueueTest, AnswerToAFormerRequestOfTheSlotIsRefused) {
  submit_read();
  engine_->answer(0, 100);
  ASSERT_EQ(poll(), 1U);
  const RequestId second = submit_read();
  engine_->answer(0, 100);
  EXPECT_EQ(poll(), 0U);

  engine_->answer(1, 100);
  ASSERT_EQ(poll(), 1U);
  EXPECT_EQ(out_[0].request, second);
}

TEST_F(IoQueueTest, WildAnswersAreRefused) {
  submit_read();
  for (const std::uint64_t tag :
       {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{99}, engine_->taken[0].tag + 1}) {
    engine_->answers.push_back({tag, 100});
  }
  EXPECT_EQ(poll(), 0U);

  EXPECT_EQ(queue_->stats().refused_answers, 4U);
  engine_->answer(0, 100);
  EXPECT_EQ(poll(), 1U);
}

TEST_F(IoQueueTest, MoreBytesThanAskedForIsAnError) {
  submit_read();
  engine_->answer(0, 101);

  ASSERT_EQ(poll(), 1U);

  EXPECT_EQ(out_[0].status, IoStatus::kFailed);
  EXPECT_EQ(out_[0].error_number, EIO);
  EXPECT_EQ(out_[0].bytes, 0U);
}

TEST_F(IoQueueTest, PollGivesUpAtItsDeadline) {
  submit_read();
  const IoTime deadline = std::chrono::steady_clock::now();

  EXPECT_EQ(poll(1, deadline), 0U);

  EXPECT_EQ(engine_->deadlines.back(), deadline);
  engine_->answer(0, 100);
  EXPECT_EQ(poll(1, kForever), 1U);
}

TEST_F(IoQueueTest, PollDoesNotWaitForMoreThanIsInFlight) {
  submit_read();
  engine_->answer(0, 100);

  EXPECT_EQ(poll(4, kForever), 1U);
  EXPECT_EQ(poll(4, kForever), 0U);
}

TEST_F(IoQueueTest, PollHasRoomForWhatItWaitsFor) {
  EXPECT_THROW(static_cast<void>(poll(5)), InvalidArgument);
}

TEST_F(IoQueueTest, FailureOfTheEngineIsThrownAndEndsTheWait) {
  submit_read();
  engine_->fails_to_reap = true;

  EXPECT_THROW(static_cast<void>(poll(1, kForever)), IoError);

  queue_.reset();  // does not wait for what will never come
}

TEST_F(IoQueueTest, DrainWaitsForEveryAnswerAndContinuesNone) {
  submit_read();
  submit_read();
  engine_->answer(1, 30);
  engine_->answer(0, -EAGAIN);

  queue_->drain();

  EXPECT_EQ(engine_->taken.size(), 2U);
  EXPECT_EQ(queue_->used_slots(), 0U);
  EXPECT_EQ(poll(), 0U);
}

TEST_F(IoQueueTest, RefusedFileTakesNoPlace) {
  engine_->refuses_files = true;
  for (int i = 0; i < 3; ++i) EXPECT_THROW(static_cast<void>(queue_->register_file(file_)), IoError);

  engine_->refuses_files = false;
  queue_->unregister_file(queue_->register_file(file_));
}

TEST_F(IoQueueTest, ErrorOfACompleteTransferIsAMistake) {
  EXPECT_THROW(static_cast<void>(queue_->error_of(Completion{})), InvalidArgument);
}

TEST_F(IoQueueTest, ErrorOutlivesTheRegistration) {
  submit_read();
  engine_->answer(0, -EIO);
  ASSERT_EQ(poll(), 1U);
  queue_->unregister_file(id_);

  EXPECT_THAT(queue_->error_of(out_[0]).what(), testing::HasSubstr("no longer registered"));
}

TEST(IoQueue, NeedsAnEngine) {
  EXPECT_THROW(IoQueue(nullptr), InvalidArgument);
}

}  // namespace
}  // namespace metrale::io
