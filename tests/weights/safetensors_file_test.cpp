// SPDX-License-Identifier: Apache-2.0
// Reading an open file: ranges, mappings, faulty reads and files that change.
#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <numeric>
#include <string>
#include <support/temp_dir.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>
#include <weights/file_bytes.h>
#include <weights/io_shim.h>

#include <gtest/gtest.h>

namespace metrale::weights {
namespace {

using testing::HasSubstr;

// A one-byte tensor, so that the floats after it are not aligned, a hundred floats and an empty tensor.
constexpr std::string_view kJson = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                   R"("f":{"dtype":"F32","shape":[10,10],"data_offsets":[1,401]},)"
                                   R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[401,401]}})";
constexpr std::size_t kFloats = 100;

std::vector<float> expected_floats() {
  std::vector<float> values(kFloats);
  std::iota(values.begin(), values.end(), 0.5F);
  return values;
}

std::string small_file() {
  std::string data(1 + kFloats * sizeof(float), 'x');
  std::memcpy(data.data() + 1, expected_floats().data(), kFloats * sizeof(float));
  return file_bytes(kJson, data);
}

std::vector<float> read_floats(const SafetensorsFile& file) {
  std::vector<float> out(kFloats);
  file.read(*file.header().find("f"), std::as_writable_bytes(std::span(out)));
  return out;
}

std::vector<float> to_floats(std::span<const std::byte> bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

void set_modified(const std::string& path, time_t seconds) {
  const std::array<timespec, 2> times{timespec{seconds, 0}, timespec{seconds, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
}

TEST(SafetensorsFile, ReadGivesTheTensorsBytesAtAnyAlignment) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  EXPECT_EQ(read_floats(file), expected_floats());
}

TEST(SafetensorsFile, ReadRangeGivesPartsOfATensor) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  std::array<float, 3> out{};
  file.read_range(*file.header().find("f"), 97 * sizeof(float), std::as_writable_bytes(std::span(out)));
  EXPECT_THAT(out, testing::ElementsAre(97.5F, 98.5F, 99.5F));
}

TEST(SafetensorsFile, ARangeBeyondTheTensorIsRefused) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  const TensorInfo& tensor = *file.header().find("f");
  std::array<std::byte, 8> out{};
  EXPECT_THROW(file.read_range(tensor, 393, out), InvalidArgument);
  EXPECT_THROW(file.read_range(tensor, ~std::uint64_t{0} - 3, out), InvalidArgument);
  EXPECT_NO_THROW(file.read_range(tensor, 392, out));
}

TEST(SafetensorsFile, ABufferOfAnotherSizeIsRefusedNamingBoth) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  std::array<std::byte, 399> out{};
  try {
    file.read(*file.header().find("f"), out);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor 'f' has 400 bytes, the buffer for it 399"));
  }
}

TEST(SafetensorsFile, ATensorBeyondTheFileIsRefused) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  TensorInfo other = *file.header().find("b");
  other.offset_bytes = file.size_bytes();
  std::array<std::byte, 1> out{};
  EXPECT_THROW(file.read(other, out), InvalidArgument);
  EXPECT_THROW((void)file.map(other), InvalidArgument);
}

TEST(SafetensorsFile, AnEmptyTensorIsReadAndMappedWithoutInputOutput) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  const io_shim::Hook no_reads = io_shim::on_pread([](int, void*, std::size_t, off_t) -> ssize_t {
    ADD_FAILURE() << "read";
    return 0;
  });
  file.read(*file.header().find("none"), {});
  EXPECT_TRUE(file.map(*file.header().find("none")).empty());
}

TEST(SafetensorsFile, MapGivesTheSameBytesAsRead) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  EXPECT_EQ(to_floats(file.map(*file.header().find("f"))), expected_floats());
  EXPECT_EQ(file.map(*file.header().find("b"))[0], std::byte{'x'});
}

TEST(SafetensorsFile, WhereMappingIsRefusedTensorsAreReadAndKept) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  const io_shim::Hook refuse = io_shim::on_mmap([](int) { return ENODEV; });

  const auto first = file.map(*file.header().find("f"));
  (void)file.map(*file.header().find("b"));
  const auto second = file.map(*file.header().find("f"));

  EXPECT_EQ(to_floats(first), expected_floats());
  EXPECT_EQ(first.data(), second.data());
}

TEST(SafetensorsFile, AReadThatFailsInsteadOfAMappingLeavesNothingKept) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  const io_shim::Hook refuse = io_shim::on_mmap([](int) { return ENODEV; });
  {
    const io_shim::Hook broken = io_shim::on_pread([](int, void*, std::size_t, off_t) -> ssize_t {
      errno = EIO;
      return -1;
    });
    EXPECT_THROW((void)file.map(*file.header().find("f")), IoError);
  }
  EXPECT_EQ(to_floats(file.map(*file.header().find("f"))), expected_floats());
}

TEST(SafetensorsFile, ReadsOfOneByteAreContinued) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", small_file());
  const io_shim::Hook one_byte = io_shim::on_pread(
      [](int fd, void* out, std::size_t, off_t offset) { return io_shim::real_pread(fd, out, 1, offset); });
  EXPECT_EQ(read_floats(SafetensorsFile::open(path)), expected_floats());
}

TEST(SafetensorsFile, InterruptedReadsAreRetried) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", small_file());
  int calls = 0;
  const io_shim::Hook interrupted =
      io_shim::on_pread([&](int fd, void* out, std::size_t count, off_t offset) -> ssize_t {
        if (++calls % 10 != 0) {
          errno = EINTR;
          return -1;
        }
        return io_shim::real_pread(fd, out, std::min<std::size_t>(count, 7), offset);
      });
  EXPECT_EQ(read_floats(SafetensorsFile::open(path)), expected_floats());
  EXPECT_GT(calls, 500);
}

TEST(SafetensorsFile, AnErrorInTheMiddleOfATensorNamesFileAndByte) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", small_file());
  const auto file = SafetensorsFile::open(path);
  const TensorInfo& tensor = *file.header().find("f");
  const off_t bad = static_cast<off_t>(tensor.offset_bytes) + 128;
  const io_shim::Hook broken =
      io_shim::on_pread([&](int fd, void* out, std::size_t count, off_t offset) -> ssize_t {
        if (offset >= bad) {
          errno = EIO;
          return -1;
        }
        return io_shim::real_pread(fd, out, std::min<std::size_t>(count, 64), offset);
      });
  try {
    (void)read_floats(file);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.path(), path);
    EXPECT_EQ(error.error_number(), EIO);
    EXPECT_EQ(error.offset(), static_cast<std::uint64_t>(bad));
  }
}

TEST(SafetensorsFile, AnErrorWhileReadingTheHeaderNamesFileAndByte) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", small_file());
  const io_shim::Hook broken =
      io_shim::on_pread([&](int fd, void* out, std::size_t count, off_t offset) -> ssize_t {
        if (offset >= 20) {
          errno = EIO;
          return -1;
        }
        return io_shim::real_pread(fd, out, std::min<std::size_t>(count, 6), offset);
      });
  try {
    (void)SafetensorsFile::open(path);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.offset(), 20U);
  }
}

TEST(SafetensorsFile, AFileCutAfterItWasOpenedFailsTheReadAtItsEnd) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", small_file());
  const auto file = SafetensorsFile::open(path);
  const std::uint64_t end = file.size_bytes() - 100;
  std::filesystem::resize_file(path, end);
  try {
    (void)read_floats(file);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), 0);
    EXPECT_EQ(error.offset(), end);
    EXPECT_THAT(error.what(), HasSubstr("the file ends here; 400 bytes wanted"));
  }
  EXPECT_THROW(file.check_unchanged(), IoError);
  EXPECT_THROW((void)file.map(*file.header().find("f")), IoError);
}

TEST(SafetensorsFile, AFileThatGrewIsChanged) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", small_file());
  const auto file = SafetensorsFile::open(path);
  std::filesystem::resize_file(path, file.size_bytes() + 1);
  try {
    file.check_unchanged();
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.path(), path);
    EXPECT_THAT(error.what(), HasSubstr("bytes when it was opened and has"));
  }
}

TEST(SafetensorsFile, AFileOverwrittenInPlaceIsChanged) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", small_file());
  set_modified(path, 1'000'000);
  const auto file = SafetensorsFile::open(path);
  EXPECT_NO_THROW(file.check_unchanged());

  dir.write("m.safetensors", small_file());

  EXPECT_THROW(file.check_unchanged(), IoError);
}

TEST(SafetensorsFile, AFileReplacedByARenameKeepsGivingItsOldBytes) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", small_file());
  const auto file = SafetensorsFile::open(path);
  std::filesystem::rename(dir.write("new", file_of("{}")), path);
  EXPECT_EQ(read_floats(file), expected_floats());
  EXPECT_NO_THROW(file.check_unchanged());
}

TEST(SafetensorsFile, ATruncatedFileIsRefusedWhenItIsOpened) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", small_file());
  for (std::uint64_t size = std::filesystem::file_size(path); size > 0; --size) {
    std::filesystem::resize_file(path, size - 1);
    EXPECT_THROW((void)SafetensorsFile::open(path), FormatError) << size;
  }
}

TEST(SafetensorsFile, AnEnormousHeaderLengthIsRefusedWithoutAllocatingIt) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", length_bytes(kMaxHeaderBytes + 1));
  std::filesystem::resize_file(path, kMaxHeaderBytes + 16);
  const std::string beyond = dir.write("n.safetensors", length_bytes(kMaxHeaderBytes));
  (void)io_shim::largest_allocation(true);
  EXPECT_THROW((void)SafetensorsFile::open(path), FormatError);
  EXPECT_THROW((void)SafetensorsFile::open(beyond), FormatError);
  EXPECT_LT(io_shim::largest_allocation(false), std::size_t{1} << 20);
}

TEST(SafetensorsFile, AMissingFileIsAnIoError) {
  try {
    (void)SafetensorsFile::open("/nonexistent/m.safetensors");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), ENOENT);
  }
}

TEST(SafetensorsFile, ADirectoryAndANamedPipeAreRefusedAtOnce) {
  const TempDir dir;
  const std::string pipe = dir.file("pipe.safetensors");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW((void)SafetensorsFile::open(pipe), InvalidArgument);
  EXPECT_THROW((void)SafetensorsFile::open(dir.path()), InvalidArgument);
}

TEST(SafetensorsFile, AContainerWithinAFileCountsFromItsOwnStart) {
  const TempDir dir;
  const std::string inner = small_file();
  const std::string path = dir.write("archive", std::string(13, '#') + inner + "tail");
  const auto file =
      SafetensorsFile::open(path, {.container_offset_bytes = 13, .container_size_bytes = inner.size()});
  EXPECT_EQ(file.header().find("b")->offset_bytes, 13 + 8 + kJson.size());
  EXPECT_EQ(read_floats(file), expected_floats());
  EXPECT_EQ(to_floats(file.map(*file.header().find("f"))), expected_floats());
}

TEST(SafetensorsFile, AContainerReachesToTheEndOfTheFileByDefault) {
  const TempDir dir;
  const std::string path = dir.write("archive", "###" + small_file());
  EXPECT_EQ(read_floats(SafetensorsFile::open(path, {.container_offset_bytes = 3})), expected_floats());
}

TEST(SafetensorsFile, AnErrorInAContainerNamesTheByteInTheFile) {
  const TempDir dir;
  const std::string path = dir.write("archive", std::string(100, '#') + file_of("[]"));
  try {
    (void)SafetensorsFile::open(path, {.container_offset_bytes = 100});
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_EQ(error.offset(), 108U);
  }
}

TEST(SafetensorsFile, AContainerThatLeavesTheFileIsRefused) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", file_of("{}"));
  EXPECT_THROW((void)SafetensorsFile::open(path, {.container_offset_bytes = 11}), InvalidArgument);
  EXPECT_THROW((void)SafetensorsFile::open(path, {.container_offset_bytes = 1, .container_size_bytes = 10}),
               InvalidArgument);
  EXPECT_THROW((void)SafetensorsFile::open(path, {.container_size_bytes = ~std::uint64_t{0}}),
               InvalidArgument);
}

TEST(SafetensorsFile, AMovedFileGoesOnReading) {
  const TempDir dir;
  auto first = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  const auto view = first.map(*first.header().find("f"));
  const SafetensorsFile second = std::move(first);
  EXPECT_EQ(read_floats(second), expected_floats());
  EXPECT_EQ(to_floats(view), expected_floats());
}

TEST(SafetensorsFile, ThreadsReadAndMapAtTheSameTime) {
  const TempDir dir;
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", small_file()));
  std::vector<int> good(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < good.size(); ++i) {
    threads.emplace_back([&, i] {
      good[i] = read_floats(file) == expected_floats() &&
                to_floats(file.map(*file.header().find("f"))) == expected_floats();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(good, testing::Each(1));
}

TEST(SafetensorsFile, AnyBytesOfTheFileCanBeRead) {
  const TempDir dir;
  const std::string bytes = file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3);
  const auto file = SafetensorsFile::open(dir.write("m.safetensors", bytes));
  std::string out(bytes.size(), 'x');
  file.read_bytes(0, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, bytes);
  out.resize(5);
  file.read_bytes(9, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, bytes.substr(9, 5));
  EXPECT_THROW(file.read_bytes(bytes.size() - 4, std::as_writable_bytes(std::span(out))), InvalidArgument);
  EXPECT_THROW(file.read_bytes(~std::uint64_t{0}, std::as_writable_bytes(std::span(out))), InvalidArgument);
}

}  // namespace
}  // namespace metrale::weights
