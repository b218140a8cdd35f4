// SPDX-License-Identifier: Apache-2.0
// What is cuFile's own, over the library of the tests.
#include <array>
#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/error.h>
#include <metrale/io/make_queue.h>

#include "support/fake_cufile/fake_library.h"
#include "support/temp_dir.h"

namespace metrale::io {
namespace {

using testing::HasSubstr;

// Any library stands for the CUDA driver, which the fake does not use.
std::unique_ptr<IoQueue> open_queue(std::vector<std::string> libraries = {test::fake_cufile_path()},
                                    const std::string& cuda_library = "libc.so.6") {
  return make_io_queue({.kind = IoEngineKind::kCufile,
                        .threads = 2,
                        .cufile_libraries = std::move(libraries),
                        .cuda_library = cuda_library});
}

std::string refusal(std::vector<std::string> libraries, const std::string& cuda_library = "libc.so.6") {
  try {
    static_cast<void>(open_queue(std::move(libraries), cuda_library));
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class CufileTest : public testing::Test {
 protected:
  void TearDown() override {
    for (std::atomic<int>* code :
         {&knobs_.driver_code, &knobs_.handle_code, &knobs_.buffer_code, &knobs_.transfer_code}) {
      *code = 0;
    }
  }

  Completion read(IoQueue& queue, FileId id, std::span<std::byte> memory, BufferId buffer = {}) {
    const DevicePtr device(reinterpret_cast<std::uintptr_t>(memory.data()));
    EXPECT_TRUE(queue.prepare(read_request(id, 0, device, memory.size(), 0, buffer)).has_value());
    queue.submit();
    std::array<Completion, 1> done{};
    EXPECT_EQ(queue.poll(done, 1), 1U);
    return done[0];
  }

  TempDir dir_;
  File file_ = File::open(dir_.write("file", std::string(8'192, 'c')), OpenMode::kRead);
  AlignedBuffer memory_{8'192, 4'096};
  test::CufileKnobs& knobs_ = test::fake_cufile_knobs();
};

TEST_F(CufileTest, AbsentLibraryIsUnsupportedAndSaysWhatWasTried) {
  const std::string text = refusal({"libno_cufile.so.0", "libno_cufile.so"});

  EXPECT_THAT(text, HasSubstr("cuFile"));
  EXPECT_THAT(text, HasSubstr("libno_cufile.so.0"));
  EXPECT_THAT(refusal({}), HasSubstr("no library is named"));
}

TEST_F(CufileTest, LaterNameIsTriedWhereTheFirstIsAbsent) {
  EXPECT_EQ(open_queue({"libno_cufile.so.0", test::fake_cufile_path()})->name(), "cufile");
}

TEST_F(CufileTest, LibraryWithoutTheCallsIsUnsupported) {
  EXPECT_THAT(refusal({"libc.so.6"}), HasSubstr("cuFileDriverOpen"));
}

TEST_F(CufileTest, WithoutACudaDriverItIsUnsupportedAndNotOpened) {
  const long opened = knobs_.driver_opens;

  EXPECT_THAT(refusal({test::fake_cufile_path()}, "libno_cuda.so.1"), HasSubstr("without a CUDA driver"));

  EXPECT_EQ(knobs_.driver_opens, opened);
}

TEST_F(CufileTest, DriverThatDoesNotOpenIsUnsupported) {
  knobs_.driver_code = 5'001;
  EXPECT_THAT(refusal({test::fake_cufile_path()}), HasSubstr("5001"));

  knobs_.driver_code = 5'026;  // open already
  EXPECT_EQ(open_queue()->name(), "cufile");
}

TEST_F(CufileTest, CodeOfTheLibraryComesBack) {
  const auto queue = open_queue();
  const FileId id = queue->register_file(file_);
  knobs_.transfer_code = 5'011;

  const Completion done = read(*queue, id, memory_.span());

  EXPECT_EQ(done.status, IoStatus::kFailed);
  EXPECT_EQ(done.error_number, EIO);
  EXPECT_EQ(done.library_code, 5'011);
  EXPECT_THAT(queue->error_of(done).what(), HasSubstr("cufile code 5011"));
}

TEST_F(CufileTest, ErrnoOfTheSystemComesBack) {
  const auto queue = open_queue();
  const FileId id = queue->register_file(file_);
  knobs_.transfer_code = 1;

  const Completion done = read(*queue, id, memory_.span());

  EXPECT_EQ(done.error_number, EIO);
  EXPECT_EQ(done.library_code, 0);
}

TEST_F(CufileTest, RegisteredMemoryIsNamedByItsBase) {
  const auto queue = open_queue();
  const FileId id = queue->register_file(file_);
  const DevicePtr base(reinterpret_cast<std::uintptr_t>(memory_.data()));
  const BufferId buffer = queue->register_buffer(base, memory_.size_bytes());
  const long before = knobs_.based_transfers;

  EXPECT_EQ(read(*queue, id, memory_.span().subspan(4'096), buffer).status, IoStatus::kComplete);

  EXPECT_EQ(knobs_.based_transfers, before + 1);
  EXPECT_EQ(knobs_.unknown_bases, 0);
  EXPECT_EQ(memory_.span()[4'096], std::byte{'c'});
}

TEST_F(CufileTest, MemoryThatIsNotRegisteredGoesThroughTheLibrarysOwn) {
  knobs_.buffer_code = 5'036;
  const auto queue = open_queue();
  const FileId id = queue->register_file(file_);
  const DevicePtr base(reinterpret_cast<std::uintptr_t>(memory_.data()));
  const BufferId buffer = queue->register_buffer(base, memory_.size_bytes());

  EXPECT_EQ(queue->stats().plain_buffers, 1U);
  EXPECT_EQ(read(*queue, id, memory_.span(), buffer).status, IoStatus::kComplete);
  EXPECT_EQ(knobs_.open_buffers, 0);
}

TEST_F(CufileTest, RefusedFileIsAnIoError) {
  const auto queue = open_queue();
  knobs_.handle_code = 5'008;
  try {
    static_cast<void>(queue->register_file(file_));
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.path(), file_.path());
    EXPECT_THAT(error.what(), HasSubstr("5008"));
  }
}

TEST_F(CufileTest, RefusalForWantOfUdevSaysSo) {
  const auto queue = open_queue();
  knobs_.handle_code = 5'027;
  try {
    static_cast<void>(queue->register_file(file_));
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/run/udev"));
  }
}

TEST_F(CufileTest, QueueGivesBackWhatItRegistered) {
  {
    const auto queue = open_queue();
    static_cast<void>(queue->register_file(file_));
    static_cast<void>(queue->register_buffer(memory_.span()));
    queue->unregister_file(queue->register_file(file_));
    EXPECT_EQ(knobs_.open_handles, 1);
    EXPECT_EQ(knobs_.open_buffers, 1);
  }
  EXPECT_EQ(knobs_.open_handles, 0);
  EXPECT_EQ(knobs_.open_buffers, 0);
}

}  // namespace
}  // namespace metrale::io
