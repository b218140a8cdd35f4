// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <support/temp_dir.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <vector>
#include <weights/file_bytes.h>
#include <weights/io_shim.h>

#include <gtest/gtest.h>

#include <metrale/weights/safetensors_writer.h>

namespace metrale::weights {
namespace {

using testing::HasSubstr;

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::size_t entries_in(const TempDir& dir) {
  const std::filesystem::directory_iterator entries(dir.path());
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

TensorData tensor(std::string name, DType dtype, std::vector<std::uint64_t> shape, std::string_view bytes) {
  return {std::move(name), dtype, std::move(shape), std::as_bytes(std::span(bytes))};
}

TEST(SafetensorsWriter, BytesAreThoseOfTheReferenceImplementation) {
  // What version 0.8.0 of the Python package writes for these four tensors.
  const TempDir dir;
  const std::string floats("\0\0\0\0\0\0\x80\x3f\0\0\0\x40", 12);
  const std::vector<TensorData> tensors{
      tensor("b", DType::kF32, {3}, floats),
      tensor("a\n\"", DType::kF16, {2, 2}, std::string_view("\0\0\0\0\0\0\0\0", 8)),
      tensor("z", DType::kI64, {0, 4}, ""), tensor("a", DType::kU8, {}, "\x01")};
  write_safetensors(dir.file("m"), tensors, {{"format", "pt"}});
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"I64","shape":[0,4],"data_offsets":[0,0]},)"
      R"("b":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
      R"("a\n\"":{"dtype":"F16","shape":[2,2],"data_offsets":[12,20]},)"
      R"("a":{"dtype":"U8","shape":[],"data_offsets":[20,21]}} )";
  EXPECT_EQ(read_all(dir.file("m")), file_bytes(json, floats + std::string(8, '\0') + "\x01"));
}

TEST(SafetensorsWriter, NoTensorsMakeAValidFile) {
  const TempDir dir;
  write_safetensors(dir.file("m"), {});
  EXPECT_EQ(read_all(dir.file("m")), file_bytes("{}      "));
  EXPECT_TRUE(SafetensorsFile::open(dir.file("m")).header().tensors().empty());
}

TEST(SafetensorsWriter, EveryNameComesBack) {
  const TempDir dir;
  const std::vector<std::string> names{
      "", std::string("a\0b", 3), "q\"u\\o/te", "\x01\x1f\x7f\b\f\n\r\t", "é😀\u009b", "__metadata"};
  std::vector<TensorData> tensors;
  for (const std::string& name : names) tensors.push_back(tensor(name, DType::kU8, {1}, "x"));
  write_safetensors(dir.file("m"), tensors, {{std::string("\0", 1), "\n"}});
  const auto file = SafetensorsFile::open(dir.file("m"));
  for (const std::string& name : names) EXPECT_NE(file.header().find(name), nullptr) << printable_name(name);
  EXPECT_EQ(file.header().metadata().at(std::string("\0", 1)), "\n");
}

TEST(SafetensorsWriter, EveryTensorIsAlignedToItsElement) {
  const TempDir dir;
  std::vector<std::string> data;
  for (std::size_t i = 0; i < detail::kDTypes.size(); ++i) data.emplace_back(detail::kDTypes[i].bits, 'x');
  std::vector<TensorData> tensors;
  for (std::size_t i = 0; i < data.size(); ++i) {
    tensors.push_back(tensor("t" + std::to_string(i), static_cast<DType>(i), {8}, data[i]));
  }
  write_safetensors(dir.file("m"), tensors);
  const auto file = SafetensorsFile::open(dir.file("m"));
  for (const TensorInfo& info : file.header().tensors()) {
    EXPECT_EQ(info.offset_bytes % std::max(1U, bits(info.dtype) / 8), 0U) << info.name;
  }
}

TEST(SafetensorsWriter, TheMetadataKeyCannotNameATensor) {
  const TempDir dir;
  const std::vector<TensorData> tensors{tensor("__metadata__", DType::kU8, {}, "x")};
  EXPECT_THROW(write_safetensors(dir.file("m"), tensors), InvalidArgument);
  EXPECT_EQ(entries_in(dir), 0U);
}

TEST(SafetensorsWriter, TensorsWithoutTheirDataAreLaidOutAlike) {
  const std::vector<TensorData> tensors{tensor("b", DType::kU8, {3}, "xyz"),
                                        tensor("a", DType::kF32, {1}, "xxxx")};
  const std::vector<TensorSpec> specs{{"b", DType::kU8, {3}}, {"a", DType::kF32, {1}}};

  const SafetensorsLayout with_data = lay_out_safetensors(tensors, {{"format", "pt"}});
  const SafetensorsLayout without = lay_out_tensor_specs(specs, {{"format", "pt"}});

  EXPECT_EQ(without.prefix, with_data.prefix);
  EXPECT_EQ(without.order, with_data.order);
}

TEST(SafetensorsWriter, ANameUsedTwiceIsRefused) {
  const std::vector<TensorData> tensors{tensor("a", DType::kU8, {}, "x"),
                                        tensor("a", DType::kF32, {}, "xxxx")};
  try {
    (void)lay_out_safetensors(tensors);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("two tensors are named 'a'"));
  }
}

TEST(SafetensorsWriter, TextThatIsNotUtf8IsRefused) {
  const std::vector<TensorData> tensors{tensor("\xff", DType::kU8, {}, "x")};
  EXPECT_THROW((void)lay_out_safetensors(tensors), InvalidArgument);
  EXPECT_THROW((void)lay_out_safetensors({}, {{"\xff", ""}}), InvalidArgument);
  EXPECT_THROW((void)lay_out_safetensors({}, {{"", "\xff"}}), InvalidArgument);
}

TEST(SafetensorsWriter, BytesMustBeWhatShapeAndTypeTake) {
  const auto lay_out = [](const TensorData& one) { (void)lay_out_safetensors(std::span(&one, 1)); };
  EXPECT_THROW(lay_out(tensor("a", DType::kF32, {2}, "x")), InvalidArgument);
  EXPECT_THROW(lay_out(tensor("a", DType::kF32, {0}, "x")), InvalidArgument);
  EXPECT_THROW(lay_out(tensor("a", DType::kU8, {~std::uint64_t{0}, 2, 0}, "")), InvalidArgument);
  EXPECT_THROW(lay_out(tensor("a", DType::kF4, {3}, "xx")), InvalidArgument);
  EXPECT_NO_THROW(lay_out(tensor("a", DType::kF4, {4}, "xx")));
}

TEST(SafetensorsWriter, AHeaderThatCouldNotBeReadBackIsRefused) {
  const SafetensorsMetadata metadata{{"k", std::string(kMaxHeaderBytes, 'x')}};
  EXPECT_THROW((void)lay_out_safetensors({}, metadata), InvalidArgument);
}

TEST(SafetensorsWriter, ShortAndInterruptedWritesAreContinued) {
  const TempDir dir;
  const std::vector<TensorData> tensors{tensor("a", DType::kU8, {10}, "0123456789")};
  write_safetensors(dir.file("whole"), tensors);
  int calls = 0;
  {
    const io_shim::Hook slow =
        io_shim::on_write([&](int fd, const void* bytes, std::size_t count) -> ssize_t {
          if (++calls % 3 != 0) {
            errno = EINTR;
            return -1;
          }
          return io_shim::real_write(fd, bytes, std::min<std::size_t>(count, 4));
        });
    write_safetensors(dir.file("slow"), tensors);
  }
  EXPECT_GT(calls, 30);
  EXPECT_EQ(read_all(dir.file("slow")), read_all(dir.file("whole")));
}

// Writing fails with `error_number` after `budget` bytes.
io_shim::Write failing_after(std::size_t& budget, int error_number) {
  return [&budget, error_number](int fd, const void* bytes, std::size_t count) -> ssize_t {
    if (budget == 0) {
      errno = error_number;
      return -1;
    }
    const ssize_t written = io_shim::real_write(fd, bytes, std::min(count, budget));
    budget -= static_cast<std::size_t>(written);
    return written;
  };
}

TEST(SafetensorsWriter, AFullDiskLeavesNoFileBehindAndTheOldOneWhole) {
  const TempDir dir;
  const std::string old = dir.write("m", "old");
  const std::string data(1000, 'x');
  const std::vector<TensorData> tensors{tensor("a", DType::kU8, {1000}, data)};
  for (std::size_t budget : {0, 1, 8, 500, 1000}) {
    const std::size_t at = budget;
    const io_shim::Hook full = io_shim::on_write(failing_after(budget, ENOSPC));
    try {
      write_safetensors(old, tensors);
      FAIL();
    } catch (const IoError& error) {
      EXPECT_EQ(error.error_number(), ENOSPC);
      EXPECT_EQ(error.path(), old);
      EXPECT_EQ(error.offset(), at);
    }
    EXPECT_EQ(read_all(old), "old");
    EXPECT_EQ(entries_in(dir), 1U);
  }
}

TEST(SafetensorsWriter, TheFileSizeLimitOfTheSystemLeavesNoFileBehind) {
  const TempDir dir;
  const std::string data(100'000, 'x');
  const std::vector<TensorData> tensors{tensor("a", DType::kU8, {100'000}, data)};
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{50'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);

  int error_number = 0;
  try {
    write_safetensors(dir.file("m"), tensors);
  } catch (const IoError& error) {
    error_number = error.error_number();
  }

  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(error_number, EFBIG);
  EXPECT_EQ(entries_in(dir), 0U);
}

TEST(SafetensorsWriter, AFailedSyncLeavesNoFileBehind) {
  const TempDir dir;
  const io_shim::Hook broken = io_shim::on_fsync([](int) {
    errno = EIO;
    return -1;
  });
  EXPECT_THROW(write_safetensors(dir.file("m"), {}), IoError);
  EXPECT_EQ(entries_in(dir), 0U);
}

TEST(SafetensorsWriter, AnInterruptedSyncIsRetried) {
  const TempDir dir;
  int calls = 0;
  const io_shim::Hook interrupted = io_shim::on_fsync([&](int) {
    errno = EINTR;
    return ++calls % 3 == 0 ? 0 : -1;
  });
  write_safetensors(dir.file("m"), {});
  EXPECT_EQ(calls, 6);  // the file and its directory
}

TEST(SafetensorsWriter, AFileSystemThatCannotSyncDirectoriesIsFine) {
  const TempDir dir;
  int calls = 0;
  const io_shim::Hook no_directories = io_shim::on_fsync([&](int) {
    errno = EINVAL;
    return ++calls == 1 ? 0 : -1;
  });
  write_safetensors(dir.file("m"), {});
  EXPECT_EQ(calls, 2);
}

TEST(SafetensorsWriter, ATargetThatCannotBeReplacedLeavesNoFileBehind) {
  const TempDir dir;
  std::filesystem::create_directory(dir.file("m"));
  EXPECT_THROW(write_safetensors(dir.file("m"), {}), IoError);
  EXPECT_EQ(entries_in(dir), 1U);
}

TEST(SafetensorsWriter, AMissingDirectoryIsAnIoErrorNamingTheTarget) {
  const TempDir dir;
  const std::string path = dir.file("none/m");
  try {
    write_safetensors(path, {});
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.path(), path);
    EXPECT_EQ(error.error_number(), ENOENT);
  }
}

TEST(SafetensorsWriter, AReaderOfTheOldFileIsNotDisturbed) {
  const TempDir dir;
  const std::vector<TensorData> old{tensor("a", DType::kU8, {3}, "old")};
  const std::vector<TensorData> fresh{tensor("a", DType::kU8, {3}, "new")};
  write_safetensors(dir.file("m"), old);
  const auto file = SafetensorsFile::open(dir.file("m"));
  write_safetensors(dir.file("m"), fresh);
  std::string out(3, ' ');
  file.read(*file.header().find("a"), std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, "old");
  EXPECT_NO_THROW(file.check_unchanged());
}

TEST(SafetensorsWriter, TheFileGetsTheModeOfAnOrdinaryNewFile) {
  const TempDir dir;
  const mode_t mask = ::umask(0027);
  write_safetensors(dir.file("m"), {});
  ::umask(mask);
  struct stat info{};
  ASSERT_EQ(::stat(dir.file("m").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0640U);
}

}  // namespace
}  // namespace metrale::weights
