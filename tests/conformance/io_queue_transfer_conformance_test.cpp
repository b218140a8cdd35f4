// SPDX-License-Identifier: Apache-2.0
// What every queue does with reads and writes that nothing disturbs.
#include <set>

#include "conformance/io_queue_conformance.h"

namespace metrale::io {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

TEST_P(IoQueueConformance, ReadBringsTheAskedRange) {
  const File file = new_file(10'000);
  const FileId id = queue_->register_file(file);

  const Completion done = run(read_request(id, 1'234, page(0).first(777), 42));

  EXPECT_EQ(done.status, IoStatus::kComplete);
  EXPECT_EQ(done.bytes, 777U);
  EXPECT_EQ(done.user_data, 42U);
  EXPECT_THAT(copy_of(page(0).first(777)), ElementsAreArray(numbered_bytes(777, 1'234)));
}

TEST_P(IoQueueConformance, WriteLandsWhereItWasAsked) {
  const File file = new_file(10'000);
  const FileId id = queue_->register_file(file);
  std::fill_n(page(0).begin(), 100, std::byte{7});

  const Completion done = run(write_request(id, 5'000, page(0).first(100)));

  EXPECT_EQ(done.status, IoStatus::kComplete);
  EXPECT_THAT(content(file, 100, 5'000), testing::Each(std::byte{7}));
  EXPECT_THAT(content(file, 5'000), ElementsAreArray(numbered_bytes(5'000)));
  EXPECT_THAT(content(file, 100, 5'100), ElementsAreArray(numbered_bytes(100, 5'100)));
}

TEST_P(IoQueueConformance, RegisteredMemoryIsReadAndWritten) {
  const File file = new_file(4 * kPage);
  const FileId id = queue_->register_file(file);
  const BufferId buffer = queue_->register_buffer(page(4, 4));

  const Completion read = run(read_request(id, kPage, page(5, 2), 0, buffer));
  const Completion written = run(write_request(id, 0, page(6).first(100), 0, buffer));

  EXPECT_EQ(read.status, IoStatus::kComplete);
  EXPECT_THAT(copy_of(page(5, 2)), ElementsAreArray(numbered_bytes(2 * kPage, kPage)));
  EXPECT_EQ(written.status, IoStatus::kComplete);
  EXPECT_THAT(content(file, 100), ElementsAreArray(numbered_bytes(100, 2 * kPage)));
}

TEST_P(IoQueueConformance, DirectFileIsReadToItsUnalignedEnd) {
  const std::string path = new_file(3 * kPage + 700).path();
  const std::optional<File> file = File::try_open_direct(path, OpenMode::kRead);
  if (!file) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  const FileId id = queue_->register_file(*file);

  const Completion done = run(read_request(id, kPage, page(0, 3)));

  EXPECT_EQ(done.status, IoStatus::kEndOfFile);
  EXPECT_EQ(done.bytes, 2 * kPage + 700);
  EXPECT_THAT(copy_of(page(0, 3).first(done.bytes)), ElementsAreArray(numbered_bytes(done.bytes, kPage)));
}

TEST_P(IoQueueConformance, DirectWritesLand) {
  const std::string path = new_file(3 * kPage).path();
  std::optional<File> file = File::try_open_direct(path, OpenMode::kReadWrite);
  if (!file) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  const FileId id = queue_->register_file(*file);
  std::fill_n(page(0).begin(), kPage, std::byte{9});

  EXPECT_EQ(run(write_request(id, kPage, page(0))).status, IoStatus::kComplete);

  const File buffered = File::open(path, OpenMode::kRead);
  EXPECT_THAT(content(buffered, kPage, kPage), testing::Each(std::byte{9}));
}

TEST_P(IoQueueConformance, ManyInFlightGetTheirOwnBytes) {
  const File file = new_file(64 * kPage);
  const FileId id = queue_->register_file(file);
  for (std::size_t i = 0; i < queue_->depth(); ++i)
    prepare(read_request(id, (7 - i) * kPage + i, page(i), i));

  const std::vector<Completion> done = finish(queue_->depth());

  std::set<std::uint64_t> seen;
  for (const Completion& completion : done) {
    const std::size_t i = completion.user_data;
    EXPECT_TRUE(seen.insert(i).second);
    EXPECT_EQ(completion.offset, (7 - i) * kPage + i);
    EXPECT_THAT(copy_of(page(i)), ElementsAreArray(numbered_bytes(kPage, completion.offset)));
  }
  EXPECT_EQ(seen.size(), queue_->depth());
}

TEST_P(IoQueueConformance, EndOfFileSaysWhatWasThere) {
  const File file = new_file(1'000);
  const FileId id = queue_->register_file(file);

  const Completion done = run(read_request(id, 900, page(0)));

  EXPECT_EQ(done.status, IoStatus::kEndOfFile);
  EXPECT_EQ(done.bytes, 100U);
  const IoError error = queue_->error_of(done);
  EXPECT_THAT(error.what(), HasSubstr(file.path()));
  EXPECT_THAT(error.what(), HasSubstr("4096 bytes wanted from byte 900, 100 transferred"));
  EXPECT_EQ(error.error_number(), 0);
  EXPECT_EQ(error.offset(), 1'000U);
}

TEST_P(IoQueueConformance, ReadBehindTheEndBringsNothing) {
  const File file = new_file(1'000);
  const FileId id = queue_->register_file(file);

  const Completion done = run(read_request(id, 5'000, page(0)));

  EXPECT_EQ(done.status, IoStatus::kEndOfFile);
  EXPECT_EQ(done.bytes, 0U);
}

TEST_P(IoQueueConformance, ErrorOfTheSystemComesBackWithPathAndOffset) {
  const File file = new_file(1'000);
  const FileId id = queue_->register_file(file);

  // Memory that is not there.
  const Completion done = run(read_request(id, 10, std::span(reinterpret_cast<std::byte*>(8), 100)));

  EXPECT_EQ(done.status, IoStatus::kFailed);
  EXPECT_EQ(done.error_number, EFAULT);
  const IoError error = queue_->error_of(done);
  EXPECT_EQ(error.path(), file.path());
  EXPECT_EQ(error.offset(), 10U);
}

// ---- depth, release, waiting

TEST_P(IoQueueConformance, PrepareSaysWhenTheQueueIsFull) {
  const File file = new_file(kPage);
  const FileId id = queue_->register_file(file);
  for (std::size_t i = 0; i < queue_->depth(); ++i) prepare(read_request(id, 0, page(i)));

  EXPECT_FALSE(queue_->prepare(read_request(id, 0, page(20))).has_value());

  EXPECT_EQ(finish(queue_->depth()).size(), queue_->depth());
  EXPECT_TRUE(queue_->prepare(read_request(id, 0, page(20))).has_value());
}

TEST_P(IoQueueConformance, ReleasedRequestIsNeverDelivered) {
  const File file = new_file(kPage);
  const FileId id = queue_->register_file(file);
  const RequestId released = prepare(read_request(id, 0, page(0), 1));
  prepare(read_request(id, 0, page(1), 2));

  EXPECT_TRUE(queue_->release(released));
  EXPECT_FALSE(queue_->release(released));

  const std::vector<Completion> done = finish(2);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].user_data, 2U);
  EXPECT_FALSE(queue_->release(done[0].request));
  EXPECT_EQ(queue_->used_slots(), 0U);
}

TEST_P(IoQueueConformance, RequestIdsAreNotGivenTwice) {
  const File file = new_file(kPage);
  const FileId id = queue_->register_file(file);
  std::set<RequestId> seen;
  for (int i = 0; i < 50; ++i) {
    const RequestId request = prepare(read_request(id, 0, page(0)));
    EXPECT_TRUE(seen.insert(request).second);
    EXPECT_EQ(finish(1).at(0).request, request);
  }
}

TEST_P(IoQueueConformance, PreparedRequestsAreNotSentBySubmitsOfOthers) {
  const File file = new_file(kPage);
  const FileId id = queue_->register_file(file);
  prepare(read_request(id, 0, page(0), 1));
  EXPECT_EQ(finish(1).size(), 1U);
  prepare(read_request(id, 0, page(0), 2));
  std::vector<Completion> out(1);

  EXPECT_EQ(queue_->poll(out, 1), 0U);  // nothing is in flight: it does not wait

  EXPECT_EQ(finish(1).at(0).user_data, 2U);
}

TEST_P(IoQueueConformance, PollWithoutWaitingComesBack) {
  const File file = new_file(kPage);
  const FileId id = queue_->register_file(file);
  prepare(read_request(id, 0, page(0)));
  queue_->submit();
  std::vector<Completion> out(1);

  std::size_t count = 0;
  while (count == 0) count = queue_->poll(out, 1, kNoWait);

  EXPECT_EQ(out[0].status, IoStatus::kComplete);
}

TEST_P(IoQueueConformance, PollWaitsNoLongerThanItsDeadline) {
  const File file = new_file(kPage);
  const FileId id = queue_->register_file(file);
  faults_->inject(IoFault::kLate, 1);
  prepare(read_request(id, 0, page(0)));
  queue_->submit();
  std::vector<Completion> out(2);

  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  std::size_t count = queue_->poll(out, 2, deadline);
  count += queue_->poll(std::span(out).subspan(count), 1 - count);

  EXPECT_EQ(count, 1U);
}

TEST_P(IoQueueConformance, CompletionsWaitForRoom) {
  const File file = new_file(kPage);
  const FileId id = queue_->register_file(file);
  for (std::size_t i = 0; i < 5; ++i) prepare(read_request(id, 0, page(i), i));
  queue_->submit();
  std::set<std::uint64_t> seen;
  std::vector<Completion> one(1);

  while (queue_->poll(one, 1) == 1) EXPECT_TRUE(seen.insert(one[0].user_data).second);

  EXPECT_EQ(seen.size(), 5U);
}

TEST_P(IoQueueConformance, DrainedQueueIsEmptyAndUsable) {
  const File file = new_file(8 * kPage);
  const FileId id = queue_->register_file(file);
  for (std::size_t i = 0; i < 4; ++i) prepare(read_request(id, 0, page(i)));
  queue_->submit();
  prepare(read_request(id, 0, page(4)));

  queue_->drain();

  EXPECT_EQ(queue_->used_slots(), 0U);
  std::vector<Completion> out(1);
  EXPECT_EQ(queue_->poll(out, 1), 0U);
  EXPECT_EQ(run(read_request(id, 0, page(0))).status, IoStatus::kComplete);
  queue_->unregister_file(id);
}

TEST_P(IoQueueConformance, MemoryIsQuietOnceTheQueueIsGone) {
  const File file = new_file(64 * kPage);
  const FileId id = queue_->register_file(file);
  for (std::size_t i = 0; i < queue_->depth(); ++i) prepare(read_request(id, 0, page(i * 8, 8)));
  queue_->submit();

  queue_.reset();
  std::fill(memory_.span().begin(), memory_.span().end(), std::byte{3});

  EXPECT_THAT(copy_of(memory_.span()), testing::Each(std::byte{3}));
}

// ---- contract

TEST_P(IoQueueConformance, RefusesRequestsThatMakeNoSense) {
  const File file = new_file(kPage);
  const File read_only = File::open(file.path(), OpenMode::kRead);
  const FileId id = queue_->register_file(file);
  const FileId other = queue_->register_file(read_only);
  const BufferId buffer = queue_->register_buffer(page(0, 2));
  const auto refuses = [&](const IoRequest& request) {
    EXPECT_THROW(static_cast<void>(queue_->prepare(request)), InvalidArgument);
  };

  refuses(read_request(FileId{}, 0, page(0)));
  refuses(read_request(id, 0, std::span<std::byte>()));
  refuses(read_request(id, ~std::uint64_t{0} - 10, page(0)));
  refuses(write_request(other, 0, page(0)));
  refuses(read_request(id, 0, page(1, 2), 0, buffer));
  refuses(read_request(id, 0, page(5), 0, buffer));
  refuses(read_request(id, 0, page(0), 0, BufferId(99)));
  EXPECT_EQ(queue_->used_slots(), 0U);
}

TEST_P(IoQueueConformance, RefusesWhatIsNotAlignedOnADirectFile) {
  const std::string path = new_file(2 * kPage).path();
  const std::optional<File> file = File::try_open_direct(path, OpenMode::kRead);
  if (!file) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  const FileId id = queue_->register_file(*file);

  EXPECT_THROW(static_cast<void>(queue_->prepare(read_request(id, 1, page(0)))), InvalidArgument);
  EXPECT_THROW(static_cast<void>(queue_->prepare(read_request(id, 0, page(0).first(100)))), InvalidArgument);
  EXPECT_THROW(static_cast<void>(queue_->prepare(read_request(id, 0, page(0, 2).subspan(1, kPage)))),
               InvalidArgument);
}

TEST_P(IoQueueConformance, IdsDieWithTheirRegistration) {
  const File file = new_file(kPage);
  const FileId id = queue_->register_file(file);
  const BufferId buffer = queue_->register_buffer(page(0));
  queue_->unregister_file(id);
  queue_->unregister_buffer(buffer);

  const FileId again = queue_->register_file(file);
  const BufferId buffer_again = queue_->register_buffer(page(0));

  EXPECT_NE(again, id);
  EXPECT_NE(buffer_again, buffer);
  EXPECT_THROW(queue_->unregister_file(id), InvalidArgument);
  EXPECT_THROW(queue_->unregister_buffer(buffer), InvalidArgument);
  EXPECT_EQ(run(read_request(again, 0, page(0), 0, buffer_again)).status, IoStatus::kComplete);
}

TEST_P(IoQueueConformance, WhatARequestUsesStaysRegistered) {
  const File file = new_file(kPage);
  const FileId id = queue_->register_file(file);
  const BufferId buffer = queue_->register_buffer(page(0));
  prepare(read_request(id, 0, page(0), 0, buffer));

  EXPECT_THROW(queue_->unregister_file(id), InvalidArgument);
  EXPECT_THROW(queue_->unregister_buffer(buffer), InvalidArgument);

  EXPECT_EQ(finish(1).size(), 1U);
  queue_->unregister_file(id);
  queue_->unregister_buffer(buffer);
}

TEST_P(IoQueueConformance, TablesSayWhenTheyAreFull) {
  const File file = new_file(kPage);
  for (int i = 0; i < 4; ++i) {
    static_cast<void>(queue_->register_file(file));
    static_cast<void>(queue_->register_buffer(page(static_cast<std::size_t>(i))));
  }

  EXPECT_THROW(static_cast<void>(queue_->register_file(file)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(queue_->register_buffer(page(9))), InvalidArgument);
}

TEST_P(IoQueueConformance, DeviceMemoryIsTakenWhereTheCapabilitiesSaySo) {
  const File file = new_file(2 * kPage);
  const FileId id = queue_->register_file(file);
  // The fake library takes host addresses for device addresses; the others must not touch them.
  const DevicePtr device(reinterpret_cast<std::uintptr_t>(page(0).data()));
  const IoRequest request = read_request(id, 100, device, 1'000);

  if (!queue_->capabilities().device_memory) {
    EXPECT_THROW(static_cast<void>(queue_->prepare(request)), Unsupported);
    EXPECT_THROW(static_cast<void>(queue_->register_buffer(device, kPage)), Unsupported);
    return;
  }
  EXPECT_EQ(run(request).status, IoStatus::kComplete);
  EXPECT_THAT(copy_of(page(0).first(1'000)), ElementsAreArray(numbered_bytes(1'000, 100)));
  const BufferId buffer = queue_->register_buffer(device, kPage);
  EXPECT_EQ(run(write_request(id, 0, device.offset(500), 500, 0, buffer)).status, IoStatus::kComplete);
  EXPECT_THAT(content(file, 500), ElementsAreArray(numbered_bytes(500, 600)));
}

TEST_P(IoQueueConformance, CountsWhatItDid) {
  const File file = new_file(kPage + 100);
  const FileId id = queue_->register_file(file);
  static_cast<void>(run(read_request(id, 0, page(0))));
  static_cast<void>(run(read_request(id, kPage, page(0))));

  EXPECT_EQ(queue_->stats().completed, 2U);
  EXPECT_EQ(queue_->stats().bytes, kPage + 100);
  EXPECT_EQ(queue_->stats().failed, 0U);
  EXPECT_EQ(queue_->stats().refused_answers, 0U);
}

}  // namespace
}  // namespace metrale::io
