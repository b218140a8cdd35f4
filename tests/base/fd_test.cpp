// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <support/temp_dir.h>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/base/fd.h>

namespace metrale {
namespace {

using testing::HasSubstr;

TEST(Fd, ReadExactlyReturnsTheAskedRange) {
  const TempDir dir;
  const std::string path = dir.write("f", "0123456789");
  const UniqueFd fd = open_for_reading(path);
  std::array<char, 4> out{};
  read_exactly(fd, std::as_writable_bytes(std::span(out)), 3, path);
  EXPECT_EQ(std::string(out.data(), out.size()), "3456");
}

TEST(Fd, ReadPastTheEndNamesFileOffsetAndLengths) {
  const TempDir dir;
  const std::string path = dir.write("short", "abc");
  const UniqueFd fd = open_for_reading(path);
  std::array<std::byte, 8> out{};
  try {
    read_exactly(fd, out, 1, path);
    FAIL() << "read past the end succeeded";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr("8 bytes wanted from byte 1, 2 there"));
    EXPECT_EQ(error.error_number(), 0);
    EXPECT_EQ(error.offset(), 3U);
  }
}

TEST(Fd, MissingFileIsAnIoErrorWithErrno) {
  try {
    (void)open_for_reading("/nonexistent/file");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), ENOENT);
  }
}

TEST(Fd, TextFileOverTheLimitIsRefusedUnread) {
  const TempDir dir;
  const std::string path = dir.write("big", std::string(100, 'x'));
  EXPECT_THROW((void)read_text_file(path, 99), FormatError);
  EXPECT_EQ(read_text_file(path, 100).size(), 100U);
}

TEST(Fd, EmptyFileMapsToAnEmptySpan) {
  const TempDir dir;
  const std::string path = dir.write("empty", "");
  const MappedFile map(open_for_reading(path), path);
  EXPECT_TRUE(map.bytes().empty());
}

// Opening a pipe to read waits for a writer, which may never come.
TEST(Fd, PipeInAFilesPlaceIsRefusedAndNotWaitedFor) {
  const TempDir dir;
  const std::string path = dir.file("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW((void)open_regular_file(path), InvalidArgument);
  EXPECT_THROW((void)read_text_file(path, 100), InvalidArgument);
  EXPECT_THROW((void)open_regular_file(dir.path()), InvalidArgument);
}

TEST(Fd, RegularFileIsOpenedWithoutFlagsThatOthersMind) {
  const TempDir dir;
  const UniqueFd fd = open_regular_file(dir.write("f", "x"));
  EXPECT_EQ(::fcntl(fd.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(Fd, DirectoryIsNotARegularFile) {
  const TempDir dir;
  const UniqueFd fd = open_for_reading(dir.path());
  EXPECT_THROW((void)identify(fd, dir.path()), InvalidArgument);
}

}  // namespace
}  // namespace metrale
