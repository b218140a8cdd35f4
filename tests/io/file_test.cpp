// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/error.h>
#include <metrale/io/fault.h>
#include <metrale/io/file.h>

#include "io/direct_alignment.h"
#include "io/page_cache.h"
#include "support/temp_dir.h"

namespace metrale::io {
namespace {

using testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string read_text(const File& file, std::size_t bytes, std::uint64_t offset = 0) {
  std::string text(bytes, '\0');
  file.read_at(std::as_writable_bytes(std::span(text)), offset);
  return text;
}

class FileTest : public testing::Test {
 protected:
  // The error number of what `call` throws; -1 where it does not.
  template <class Call>
  static int error_number_of(Call call) {
    try {
      call();
    } catch (const IoError& error) {
      return error.error_number();
    }
    return -1;
  }

  TempDir dir_;
  std::string path_ = dir_.write("file", "0123456789");
  FaultFileCalls calls_;
};

// ---- open

TEST_F(FileTest, ReadModeRefusesToWrite) {
  File file = File::open(path_, OpenMode::kRead);

  EXPECT_FALSE(file.is_writable());
  EXPECT_EQ(read_text(file, 4, 3), "3456");
  EXPECT_EQ(error_number_of([&] { file.write_at(bytes_of("x"), 0); }), EBADF);
}

TEST_F(FileTest, CreateMakesAndEmpties) {
  EXPECT_EQ(File::open(path_, OpenMode::kCreate).size_bytes(), 0U);
  File made = File::open(dir_.file("new"), OpenMode::kCreate);
  made.write_at(bytes_of("abc"), 2);

  EXPECT_EQ(read_text(made, 5), std::string("\0\0abc", 5));
}

TEST_F(FileTest, ReadWriteChangesInPlace) {
  File file = File::open(path_, OpenMode::kReadWrite);
  file.write_at(bytes_of("xy"), 4);

  EXPECT_EQ(read_text(file, 10), "0123xy6789");
}

TEST_F(FileTest, MissingFileIsAnIoErrorInEveryMode) {
  const std::string missing = dir_.file("missing");
  for (const OpenMode mode : {OpenMode::kRead, OpenMode::kReadWrite}) {
    EXPECT_EQ(error_number_of([&] { static_cast<void>(File::open(missing, mode)); }), ENOENT);
    EXPECT_EQ(error_number_of([&] { static_cast<void>(File::try_open_direct(missing, mode)); }), ENOENT);
  }
}

TEST_F(FileTest, FolderIsNotAFile) {
  EXPECT_THROW(static_cast<void>(File::open(dir_.path(), OpenMode::kRead)), InvalidArgument);
}

TEST_F(FileTest, PipeIsNotAFileAndNotWaitedFor) {
  const std::string pipe = dir_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(static_cast<void>(File::open(pipe, OpenMode::kRead)), InvalidArgument);
  EXPECT_EQ(::fcntl(File::open(path_, OpenMode::kRead).fd(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(FileTest, OpenIsRetriedWhereInterrupted) {
  calls_.fail(FileFault::kOpen, 1, EINTR, 3);

  EXPECT_EQ(read_text(File::open(path_, OpenMode::kRead, calls_), 2), "01");

  EXPECT_EQ(calls_.calls(FileFault::kOpen), 4U);
}

// ---- direct

TEST_F(FileTest, DirectFileHasTheFlagAndItsAlignment) {
  const std::optional<File> file = File::try_open_direct(path_, OpenMode::kRead);
  if (!file) GTEST_SKIP() << "no direct I/O in " << dir_.path();

  EXPECT_TRUE(file->is_direct());
  EXPECT_NE(::fcntl(file->fd(), F_GETFL) & O_DIRECT, 0);
  ASSERT_TRUE(file->direct_alignment().has_value());
  EXPECT_GE(file->direct_alignment()->memory_bytes, 512U);
  EXPECT_FALSE(File::open(path_, OpenMode::kRead).is_direct());
}

TEST_F(FileTest, RefusedDirectOpenIsAValue) {
  for (const int error : {EINVAL, EOPNOTSUPP}) {
    calls_.fail(FileFault::kOpenDirect, 1, error);
    EXPECT_FALSE(File::try_open_direct(path_, OpenMode::kRead, calls_).has_value());
  }
  EXPECT_EQ(read_text(File::open(path_, OpenMode::kRead, calls_), 1), "0");
}

TEST_F(FileTest, DirectOpenThatFailsOtherwiseThrows) {
  calls_.fail(FileFault::kOpenDirect, 1, EACCES);

  EXPECT_EQ(
      error_number_of([&] { static_cast<void>(File::try_open_direct(path_, OpenMode::kRead, calls_)); }),
      EACCES);
}

// Opens, but not as asked.
class ForgetfulCalls final : public FileCalls {
  int do_open(const std::string& path, int flags) override {
    return system_file_calls().open(path, flags & ~O_DIRECT);
  }
  std::int64_t do_read(int, std::span<std::byte>, std::uint64_t) override { return -EIO; }
  std::int64_t do_write(int, std::span<const std::byte>, std::uint64_t) override { return -EIO; }
};

TEST_F(FileTest, DirectOpenWithoutTheFlagIsNotDirect) {
  ForgetfulCalls forgetful;

  EXPECT_FALSE(File::try_open_direct(path_, OpenMode::kRead, forgetful).has_value());
}

TEST_F(FileTest, DirectTailIsReadByItsLengthRoundedUp) {
  std::string text(5'000, 'a');
  text.back() = 'z';
  const std::string path = dir_.write("tail", text);
  const std::optional<File> file = File::try_open_direct(path, OpenMode::kRead);
  if (!file) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  const AlignedBuffer memory(8'192, 4'096);

  EXPECT_EQ(file->read_up_to(memory.span(), 0), 5'000U);

  EXPECT_EQ(memory.span()[4'999], std::byte{'z'});
  EXPECT_THROW(file->read_at(memory.span(), 0), IoError);
  EXPECT_THROW(static_cast<void>(file->read_up_to(memory.span().first(100), 0)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(file->read_up_to(memory.span().first(4'096), 1)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(file->read_up_to(memory.span().subspan(1, 4'096), 0)), InvalidArgument);
}

TEST_F(FileTest, FirstDirectTransferMayBeRefused) {
  const std::optional<File> file = File::try_open_direct(path_, OpenMode::kRead, calls_);
  if (!file) GTEST_SKIP() << "no direct I/O in " << dir_.path();
  const AlignedBuffer memory(4'096, 4'096);
  calls_.fail(FileFault::kRead, 1, EINVAL);

  EXPECT_EQ(error_number_of([&] { static_cast<void>(file->read_up_to(memory.span(), 0)); }), EINVAL);

  EXPECT_EQ(File::open(path_, OpenMode::kRead, calls_).read_up_to(memory.span(), 0), 10U);
}

TEST(DirectAlignmentTest, BlockDeviceSaysItsLogicalSize) {
  const TempDir dir;
  static_cast<void>(dir.write("259:1/queue/logical_block_size", "4096\n"));
  static_cast<void>(dir.write("259/queue/logical_block_size", "512\n"));
  static_cast<void>(dir.write("8:0/queue/logical_block_size", "garbage\n"));
  std::filesystem::create_directories(dir.file("259/part"));
  std::filesystem::create_symlink("259/part", dir.file("259:2"));

  EXPECT_EQ(block_device_alignment(dir.path(), "259:1"),
            (DirectAlignment{.memory_bytes = 4'096, .offset_bytes = 4'096}));
  EXPECT_EQ(block_device_alignment(dir.path(), "259:2"),
            (DirectAlignment{.memory_bytes = 512, .offset_bytes = 512}));
  EXPECT_EQ(block_device_alignment(dir.path(), "8:0"), std::nullopt);
  EXPECT_EQ(block_device_alignment(dir.path(), "0:42"), std::nullopt);
}

// ---- transfers

TEST_F(FileTest, ShortAndInterruptedReadsAreContinued) {
  const File file = File::open(path_, OpenMode::kRead, calls_);
  calls_.limit_transfers(3);
  calls_.fail(FileFault::kRead, 2, EINTR, 2);

  EXPECT_EQ(read_text(file, 10), "0123456789");

  EXPECT_EQ(calls_.calls(FileFault::kRead), 6U);
}

TEST_F(FileTest, ShortAndInterruptedWritesAreContinued) {
  File file = File::open(path_, OpenMode::kReadWrite, calls_);
  calls_.limit_transfers(3);
  calls_.fail(FileFault::kWrite, 1, EINTR);

  file.write_at(bytes_of("abcdefghij"), 0);

  EXPECT_EQ(read_text(file, 10), "abcdefghij");
}

TEST_F(FileTest, EarlyEndNamesOffsetExpectedAndGot) {
  const File file = File::open(path_, OpenMode::kRead);
  std::vector<std::byte> out(20);
  try {
    file.read_at(out, 4);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), 0);
    EXPECT_EQ(error.offset(), 10U);
    EXPECT_EQ(error.path(), path_);
    EXPECT_THAT(error.what(), HasSubstr("20 bytes wanted from byte 4, 6 there"));
  }
}

TEST_F(FileTest, FullDiskNamesWhatWasWritten) {
  File file = File::open(path_, OpenMode::kReadWrite, calls_);
  calls_.limit_transfers(4);
  calls_.fail(FileFault::kWrite, 3, ENOSPC);
  try {
    file.write_at(bytes_of("abcdefghij"), 0);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), ENOSPC);
    EXPECT_EQ(error.offset(), 8U);
    EXPECT_THAT(error.what(), HasSubstr("10 bytes wanted at byte 0, 8 written"));
  }
}

TEST_F(FileTest, EmptyTransfersDoNothing) {
  File file = File::open(path_, OpenMode::kReadWrite, calls_);

  file.read_at({}, 1'000);
  file.write_at({}, 1'000);

  EXPECT_EQ(calls_.calls(FileFault::kRead) + calls_.calls(FileFault::kWrite), 0U);
  EXPECT_EQ(file.size_bytes(), 10U);
}

TEST_F(FileTest, EndlessInterruptionsEndInAnError) {
  const File file = File::open(path_, OpenMode::kRead, calls_);
  calls_.fail(FileFault::kRead, 1, EINTR, 1'000'000);
  std::vector<std::byte> out(1);

  EXPECT_EQ(error_number_of([&] { file.read_at(out, 0); }), EINTR);
}

// ---- identity, space, cache

TEST_F(FileTest, ChangedFileIsNoticed) {
  File file = File::open(path_, OpenMode::kReadWrite);
  const FileIdentity before = file.identity();
  file.check_unchanged(before);

  file.write_at(bytes_of("longer"), 8);

  EXPECT_THROW(file.check_unchanged(before), IoError);
}

TEST_F(FileTest, OtherFileOfTheSameSizeIsNoticedAndNamedAsThat) {
  const FileIdentity before = File::open(path_, OpenMode::kRead).identity();
  std::filesystem::copy_file(path_, path_ + ".new");
  std::filesystem::rename(path_ + ".new", path_);
  try {
    File::open(path_, OpenMode::kRead).check_unchanged(before);
    FAIL() << "nothing was noticed";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("another file has taken its place"));
  }
}

TEST_F(FileTest, AllocatedFileIsSoLong) {
  File file = File::open(path_, OpenMode::kReadWrite);

  static_cast<void>(file.allocate(100'000));
  EXPECT_EQ(file.size_bytes(), 100'000U);
  static_cast<void>(file.allocate(10));
  EXPECT_EQ(file.size_bytes(), 100'000U);
  file.resize(5);

  EXPECT_EQ(read_text(file, 5), "01234");
  EXPECT_EQ(file.size_bytes(), 5U);
  EXPECT_EQ(error_number_of([&] { static_cast<void>(file.allocate(std::uint64_t{1} << 62)); }) > 0, true);
  EXPECT_THROW(file.resize(~std::uint64_t{0}), InvalidArgument);
}

TEST_F(FileTest, DroppedPagesAreNoLongerResident) {
  File file = File::open(dir_.file("big"), OpenMode::kCreate);
  file.write_at(std::vector<std::byte>(1 << 20), 0);
  EXPECT_EQ(file.resident_bytes(), 1U << 20);
  file.sync();

  file.drop_cache({.offset = 0, .bytes = 1 << 20});

  if (file.resident_bytes() == 1U << 20)
    GTEST_SKIP() << "the pages of " << dir_.path() << " cannot be dropped";
  EXPECT_EQ(file.resident_bytes(), 0U);
}

TEST_F(FileTest, EverySourceSeesTheSamePagesInTheCache) {
  constexpr std::uint64_t kBytes = (std::uint64_t{4} << 20) + 100;
  const std::string path = dir_.file("big");
  File file = File::open(path, OpenMode::kCreate);
  file.write_at(std::vector<std::byte>(kBytes), 0);
  EXPECT_EQ(cachestat_bytes(file.fd(), kBytes).value_or(kBytes), kBytes);
  EXPECT_EQ(mincore_bytes(file.fd(), kBytes, path), kBytes);
  EXPECT_EQ(probed_bytes(file.fd(), kBytes), kBytes);
  file.sync();

  file.drop_cache({});

  if (mincore_bytes(file.fd(), kBytes, path) == kBytes)
    GTEST_SKIP() << "the pages of " << dir_.path() << " cannot be dropped";
  EXPECT_EQ(cachestat_bytes(file.fd(), kBytes).value_or(0), 0U);
  EXPECT_EQ(mincore_bytes(file.fd(), kBytes, path), 0U);
  EXPECT_LT(probed_bytes(file.fd(), kBytes), kBytes);
}

// The system tells them that all of it is in the page cache.
TEST_F(FileTest, WhoMayOnlyReadAFileSeesWhatIsInTheCache) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;
  const std::string path = dir_.file("big");
  File file = File::open(path, OpenMode::kCreate);
  file.write_at(std::vector<std::byte>(kBytes), 0);
  file.sync();
  file.drop_cache({});
  if (file.resident_bytes() != 0) GTEST_SKIP() << "the pages of " << dir_.path() << " cannot be dropped";
  const File readable = File::open(path, OpenMode::kRead);
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(::seteuid(kNobody), 0);
  const auto told = mincore_bytes(readable.fd(), kBytes, path);
  const std::uint64_t cold = readable.resident_bytes();
  std::vector<std::byte> bytes(kBytes);
  readable.read_at(bytes, 0);
  const std::uint64_t warm = readable.resident_bytes();
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(told, std::nullopt);
  EXPECT_LT(cold, kBytes / 2);
  EXPECT_GT(warm, kBytes / 2);
}

TEST_F(FileTest, EmptyFileHasNothingResident) {
  EXPECT_EQ(File::open(dir_.file("empty"), OpenMode::kCreate).resident_bytes(), 0U);
}

TEST_F(FileTest, MovedFileKeepsItsDescriptor) {
  File file = File::open(path_, OpenMode::kRead);
  const int fd = file.fd();

  const File moved = std::move(file);

  EXPECT_EQ(moved.fd(), fd);
  EXPECT_EQ(read_text(moved, 1), "0");
}

}  // namespace
}  // namespace metrale::io
