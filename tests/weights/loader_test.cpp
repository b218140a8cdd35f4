// SPDX-License-Identifier: Apache-2.0
// Loading by every path: the bytes, their order, what is asked for and what is not, and what the system does
// in between.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>
#include <unistd.h>

#include <gmock/gmock.h>

#include <metrale/base/error.h>
#include <metrale/io/fault.h>
#include <metrale/io/file.h>
#include <metrale/weights/tensor_rules.h>

#include "weights/loader_support.h"

namespace metrale::weights {
namespace {

using testing::HasSubstr;

void expect_whole(const RandomModel& model, const std::vector<TensorLoad>& loads,
                  const CollectingSink& sink) {
  ASSERT_TRUE(sink.is_complete());
  EXPECT_TRUE(sink.is_finished());
  for (std::size_t i = 0; i < loads.size(); ++i) {
    ASSERT_EQ(sink.bytes(i), model.bytes(loads[i].tensor.info().name)) << loads[i].tensor.info().name;
  }
}

class LoaderByPath : public testing::TestWithParam<std::tuple<LoadPath, io::IoEngineKind>> {
 protected:
  [[nodiscard]] static LoadOptions options() {
    return small_chunks(std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
};

class LoaderThatReads : public LoaderByPath {};

TEST_P(LoaderByPath, GivesEveryByteOnce) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const RandomModel model(seed);
    const auto directory = ModelDirectory::open(model.path());
    const auto loads = load_all(directory);
    for (const bool wants_order : {true, false}) {
      CollectingSink sink(loads, wants_order);
      const LoadReport report = load_tensors(directory, loads, sink, options());
      expect_whole(model, loads, sink);
      EXPECT_EQ(report.loaded_bytes, directory.total_bytes()) << "seed " << seed;
      for (const FileLoad& file : report.files) EXPECT_EQ(file.used, options().path);
    }
  }
}

TEST_P(LoaderByPath, GivesRangesOfTensors) {
  const RandomModel model(3);
  const auto directory = ModelDirectory::open(model.path());
  std::mt19937_64 random(9);
  for (int round = 0; round < 20; ++round) {
    std::vector<TensorLoad> loads;
    for (const TensorRef& tensor : directory.tensors()) {
      if (random() % 3 == 0) continue;
      const std::uint64_t width = bits(tensor.info().dtype) / 8;
      const std::uint64_t count = tensor.info().size_bytes / width;
      const std::uint64_t first = count == 0 ? 0 : random() % count;
      loads.push_back({tensor, first * width, random() % (count - first + 1) * width});
    }
    std::shuffle(loads.begin(), loads.end(), random);
    CollectingSink sink(loads);
    (void)load_tensors(directory, loads, sink, options());
    ASSERT_TRUE(sink.is_complete());
    for (std::size_t i = 0; i < loads.size(); ++i) {
      const Bytes& whole = model.bytes(loads[i].tensor.info().name);
      const auto first = whole.begin() + static_cast<std::ptrdiff_t>(loads[i].begin_bytes);
      ASSERT_EQ(sink.bytes(i), Bytes(first, first + static_cast<std::ptrdiff_t>(loads[i].size_bytes)));
    }
  }
}

// A mapping of a file that is cut ends the process.
TEST_P(LoaderThatReads, FindsAFileThatIsCutWhileItLoads) {
  const RandomModel model(5);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  LoadOptions load = options();
  load.progress = [&](std::uint64_t, std::uint64_t) {
    std::filesystem::resize_file(directory.files()[1].path(), 40'000);
    return true;
  };
  try {
    (void)load_tensors(directory, loads, sink, load);
    FAIL() << "the load went through";
  } catch (const IoError& error) {
    EXPECT_EQ(error.path(), directory.files()[1].path());
  }
}

TEST_P(LoaderByPath, FindsAFileThatIsWrittenWhileItLoads) {
  const RandomModel model(6);
  for (const auto& entry : std::filesystem::directory_iterator(model.path())) {
    // Older than the resolution of the file system's clock.
    std::filesystem::last_write_time(entry, entry.last_write_time() - std::chrono::hours(1));
  }
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  LoadOptions load = options();
  load.progress = [&](std::uint64_t, std::uint64_t) {
    std::fstream file(directory.files()[0].path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
    return true;
  };
  EXPECT_THROW((void)load_tensors(directory, loads, sink, load), IoError);
}

TEST_P(LoaderByPath, FindsAFileThatWasReplacedBeforeTheLoad) {
  const RandomModel model(7);
  const auto directory = ModelDirectory::open(model.path());
  const std::string path = directory.files()[0].path();
  std::filesystem::copy_file(path, path + ".new");
  std::filesystem::rename(path + ".new", path);
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  EXPECT_THROW((void)load_tensors(directory, loads, sink, options()), IoError);
}

TEST_P(LoaderByPath, StopsWhereProgressSaysSo) {
  const RandomModel model(8);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  LoadOptions load = options();
  load.progress = [](std::uint64_t done, std::uint64_t total) { return done * 2 < total; };
  EXPECT_THROW((void)load_tensors(directory, loads, sink, load), Cancelled);
  EXPECT_TRUE(sink.is_finished()) << "the sink was left with chunks in use";
  EXPECT_FALSE(sink.is_complete());
}

TEST_P(LoaderByPath, ReadsThroughLinksAndBesideThem) {
  const RandomModel model(9);
  const TempDir snapshot;
  for (const auto& entry : std::filesystem::directory_iterator(model.path())) {
    std::filesystem::create_symlink(entry.path(), snapshot.file(entry.path().filename().string()));
  }
  const auto directory = ModelDirectory::open(snapshot.path());
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  (void)load_tensors(directory, loads, sink, options());
  expect_whole(model, loads, sink);
}

std::string path_name(const testing::TestParamInfo<LoaderByPath::ParamType>& instance) {
  return fmt::format("{}_{}", to_string(std::get<0>(instance.param)),
                     static_cast<int>(std::get<1>(instance.param)));
}

constexpr std::tuple<LoadPath, io::IoEngineKind> kReadPaths[] = {
    std::tuple(LoadPath::kDirect, io::IoEngineKind::kUring),
    std::tuple(LoadPath::kDirect, io::IoEngineKind::kPosix),
    std::tuple(LoadPath::kBuffered, io::IoEngineKind::kUring),
    std::tuple(LoadPath::kBuffered, io::IoEngineKind::kPosix)};
INSTANTIATE_TEST_SUITE_P(Reads, LoaderThatReads, testing::ValuesIn(kReadPaths), path_name);
INSTANTIATE_TEST_SUITE_P(Reads, LoaderByPath, testing::ValuesIn(kReadPaths), path_name);
INSTANTIATE_TEST_SUITE_P(Maps, LoaderByPath,
                         testing::Values(std::tuple(LoadPath::kMap, io::IoEngineKind::kAuto)), path_name);

// ---- what the system refuses

TEST(Loader, ADirectReadThatIsRefusedGoesOnThroughThePageCache) {
  const RandomModel model(10);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  for (const std::uint64_t nth : {1U, 2U, 5U}) {
    CollectingSink sink(loads);
    LoadOptions load = small_chunks(LoadPath::kDirect);
    load.make_engine = [nth](const io::IoOptions& options) {
      auto engine = std::make_unique<io::FaultEngine>(io::make_io_engine(options));
      engine->inject(io::IoFault::kError, nth, EINVAL);
      return engine;
    };
    const LoadReport report = load_tensors(directory, loads, sink, load);
    expect_whole(model, loads, sink);
    EXPECT_EQ(report.files[0].used, LoadPath::kBuffered);
    EXPECT_TRUE(report.files[0].fell_back);
    EXPECT_THAT(report.files[0].reason, HasSubstr("refused"));
  }
}

TEST(Loader, AFileSystemWithoutDirectIoIsReadThroughThePageCache) {
  const RandomModel model(11);
  const auto directory = ModelDirectory::open(model.path());
  for (const auto& file : directory.files()) {
    io::File::open(file.path(), io::OpenMode::kReadWrite).sync();
    io::File::open(file.path(), io::OpenMode::kRead).drop_cache({});
  }
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  io::FaultFileCalls calls;
  calls.fail(io::FileFault::kOpenDirect, 1, EINVAL, 1'000);
  LoadOptions load = small_chunks();
  load.calls = &calls;
  const LoadReport report = load_tensors(directory, loads, sink, load);
  expect_whole(model, loads, sink);
  for (const FileLoad& file : report.files) EXPECT_EQ(file.used, LoadPath::kBuffered);
}

TEST(Loader, AFailedReadNamesFileOffsetAndCause) {
  const RandomModel model(12);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  LoadOptions load = small_chunks(LoadPath::kBuffered);
  load.make_engine = [](const io::IoOptions& options) {
    auto engine = std::make_unique<io::FaultEngine>(io::make_io_engine(options));
    engine->inject(io::IoFault::kError, 3, EIO);
    return engine;
  };
  try {
    (void)load_tensors(directory, loads, sink, load);
    FAIL() << "the load went through";
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), EIO);
    EXPECT_EQ(error.path(), directory.files()[0].path());
    EXPECT_GT(error.offset(), 0U);
  }
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

// The right bytes, or an error with file and cause.
TEST(Loader, EveryScheduleOfFaultsEndsInTheRightBytesOrInAnError) {
  const RandomModel model(13);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  const std::size_t descriptors = open_descriptors();
  int whole = 0;
  for (std::uint64_t seed = 0; seed < 1'000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    CollectingSink sink(loads, seed % 2 == 0);
    LoadOptions load = small_chunks(seed % 3 == 0 ? LoadPath::kBuffered : LoadPath::kDirect,
                                    seed % 5 == 0 ? io::IoEngineKind::kPosix : io::IoEngineKind::kUring);
    load.make_engine = faulty_engine(seed);
    try {
      (void)load_tensors(directory, loads, sink, load);
      expect_whole(model, loads, sink);
      ++whole;
    } catch (const IoError& error) {
      EXPECT_EQ(seed % 4, 0U) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(".safetensors"));
      EXPECT_THAT(error.what(), HasSubstr("from byte"));
      EXPECT_NE(error.error_number(), 0);
    }
  }
  EXPECT_GT(whole, 750);
  EXPECT_LT(whole, 1'000);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(Loader, ADirectLoadThatFallsBackLeavesThePageCacheAsItWas) {
  const RandomModel model(18);
  const auto directory = ModelDirectory::open(model.path());
  for (const auto& file : directory.files()) {
    io::File::open(file.path(), io::OpenMode::kReadWrite).sync();
    io::File::open(file.path(), io::OpenMode::kRead).drop_cache({});
  }
  const auto file = io::File::open(directory.files()[0].path(), io::OpenMode::kRead);
  if (file.resident_bytes() != 0) GTEST_SKIP() << "the page cache does not let go of the file here";
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  LoadOptions load = small_chunks(LoadPath::kDirect);
  load.make_engine = [](const io::IoOptions& options) {
    auto engine = std::make_unique<io::FaultEngine>(io::make_io_engine(options));
    engine->inject(io::IoFault::kError, 1, EINVAL);
    return engine;
  };
  const LoadReport report = load_tensors(directory, loads, sink, load);
  expect_whole(model, loads, sink);
  ASSERT_TRUE(report.files[0].fell_back);
  EXPECT_EQ(file.resident_bytes(), 0U);
}

TEST(Loader, ChunksOfAnySizeAndManyShardsAtOnceLoad) {
  const RandomModel model(19);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  for (const std::uint64_t chunk : {std::uint64_t{8} << 10, std::uint64_t{10'000}, std::uint64_t{4} << 20}) {
    for (const LoadPath path : {LoadPath::kDirect, LoadPath::kBuffered}) {
      CollectingSink sink(loads, false);
      LoadOptions load;
      load.path = path;
      load.chunk_bytes = chunk;
      load.staging_bytes = kDeviceRing.staging_bytes;
      load.shards_at_once = 1'000;
      (void)load_tensors(directory, loads, sink, load);
      expect_whole(model, loads, sink);
    }
  }
}

// ---- what is asked for

// What a rank of several loads: its experts and no vision tower, and the rest by name, place and type.
TEST(Loader, RulesSayWhatIsReadAndWhatTheMemoryMustHold) {
  const TempDir dir;
  std::mt19937_64 random(20);
  std::map<std::string, Bytes> bytes;
  std::vector<TensorData> tensors;
  for (const char* name :
       {"model.layers.0.mlp.experts.0.up_proj.weight", "model.layers.0.mlp.experts.1.up_proj.weight",
        "model.layers.0.mlp.experts.2.up_proj.weight", "model.layers.0.norm.weight", "visual.patch.weight"}) {
    const Bytes& data = bytes[name] = random_bytes(random, 30'000);
    tensors.push_back({name, DType::kU8, {data.size()}, data});
  }
  write_safetensors(dir.file("model.safetensors"), tensors);
  const auto directory = ModelDirectory::open(dir.path());
  TensorRules rules;
  rules.skip_vision = true;
  rules.experts = ExpertRange{1, 2};
  const TensorSelection chosen = select_tensors(directory, rules);
  std::vector<TensorLoad> loads;
  for (const TensorRef& tensor : chosen.load) loads.push_back(TensorLoad::whole(tensor));
  CollectingSink sink(loads);
  const LoadReport report = load_tensors(directory, loads, sink, small_chunks(LoadPath::kBuffered));
  ASSERT_EQ(loads.size(), 2U);
  EXPECT_EQ(report.loaded_bytes, 60'000U);
  EXPECT_EQ(report.loaded_bytes, chosen.load_bytes);
  for (std::size_t i = 0; i < loads.size(); ++i)
    EXPECT_EQ(sink.bytes(i), bytes.at(loads[i].tensor.info().name));
}

TEST(Loader, ReadsNoMoreThanTheRangesAndTheirEdges) {
  const TempDir dir;
  std::mt19937_64 random(14);
  const Bytes data = random_bytes(random, std::size_t{8} << 20);
  write_safetensors(dir.file("model.safetensors"),
                    std::vector<TensorData>{{"t", DType::kU8, {data.size()}, data}});
  const auto directory = ModelDirectory::open(dir.path());
  const TensorRef& tensor = directory.tensors()[0];
  const std::vector<TensorLoad> loads{{tensor, 1'000, 5'000}, {tensor, std::uint64_t{7} << 20, 100}};
  CollectingSink sink(loads);
  const LoadReport report = load_tensors(directory, loads, sink, small_chunks(LoadPath::kDirect));
  EXPECT_EQ(report.loaded_bytes, 5'100U);
  EXPECT_LT(report.read_bytes, 5'100U + 4 * 4'096);
}

TEST(Loader, RefusesLoadsThatOverlapOrSplitElements) {
  const TempDir dir;
  const Bytes data(64);
  write_safetensors(dir.file("model.safetensors"), std::vector<TensorData>{{"t", DType::kF32, {16}, data}});
  const auto directory = ModelDirectory::open(dir.path());
  const TensorRef& tensor = directory.tensors()[0];
  const auto refuses = [&](std::vector<TensorLoad> loads) {
    CollectingSink sink(loads);
    EXPECT_THROW((void)load_tensors(directory, loads, sink), InvalidArgument);
  };
  refuses({{tensor, 0, 8}, {tensor, 4, 8}});
  refuses({{tensor, 2, 4}});
  refuses({{tensor, 0, 6}});
  refuses({{tensor, 32, 36}});
  refuses({{tensor, 68, 0}});
}

TEST(Loader, AModelWithoutTensorsLoads) {
  const TempDir dir;
  write_safetensors(dir.file("model.safetensors"), std::vector<TensorData>{});
  const auto directory = ModelDirectory::open(dir.path());
  const std::vector<TensorLoad> loads;
  CollectingSink sink(loads);
  EXPECT_EQ(load_tensors(directory, loads, sink).loaded_bytes, 0U);
  EXPECT_TRUE(sink.is_finished());
}

TEST(Loader, TensorsBeyondFourGibibytesOfAFileAreWhole) {
  const TempDir dir;
  // Holes read as zeros; the ends of the tensor are not.
  constexpr std::uint64_t kBytes = (std::uint64_t{4} << 30) + 12'345;
  const std::string path = dir.file("model.safetensors");
  {
    std::string header =
        fmt::format(R"({{"t":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})", kBytes, kBytes);
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = header.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out << header;
    out.close();
    std::filesystem::resize_file(path, 8 + length + kBytes);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(8 + length));
    file.put('a');
    file.seekp(static_cast<std::streamoff>(8 + length + kBytes - 1));
    file.put('z');
  }
  const auto directory = ModelDirectory::open(dir.path());
  const std::vector<TensorLoad> loads{TensorLoad::whole(directory.tensors()[0])};
  std::uint64_t got = 0;
  std::byte first{};
  std::byte last{};
  CallbackSink sink([&](const Piece& piece) {
    ASSERT_EQ(piece.offset_bytes, got);
    if (got == 0) first = piece.bytes.front();
    got += piece.bytes.size();
    last = piece.bytes.back();
  });
  LoadOptions load;
  load.path = LoadPath::kDirect;
  (void)load_tensors(directory, loads, sink, load);
  EXPECT_EQ(got, kBytes);
  EXPECT_EQ(first, std::byte{'a'});
  EXPECT_EQ(last, std::byte{'z'});
}

TEST(Loader, AMemoryFileSystemIsReadThroughItsPages) {
  if (::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  std::string where = "/dev/shm/metrale-test-XXXXXX";
  ASSERT_NE(::mkdtemp(where.data()), nullptr);
  {
    const RandomModel model(16, where);
    const auto directory = ModelDirectory::open(where);
    const auto loads = load_all(directory);
    CollectingSink sink(loads);
    const LoadReport report = load_tensors(directory, loads, sink, small_chunks());
    expect_whole(model, loads, sink);
    EXPECT_EQ(report.files[0].used, LoadPath::kBuffered);
    EXPECT_THAT(report.files[0].reason, HasSubstr("memory"));
  }
  std::filesystem::remove_all(where);
}

// The system would read megabytes on from the header.
TEST(Loader, OpeningAModelReadsItsHeadersAndNothingAhead) {
  const TempDir dir;
  const Bytes data(std::size_t{16} << 20);
  const std::string path = dir.file("model.safetensors");
  write_safetensors(path, std::vector<TensorData>{{"t", DType::kU8, {data.size()}, data}});
  io::File::open(path, io::OpenMode::kReadWrite).sync();
  const auto file = io::File::open(path, io::OpenMode::kRead);
  file.drop_cache({});
  if (file.resident_bytes() != 0) GTEST_SKIP() << "the page cache does not let go of the file here";
  const auto directory = ModelDirectory::open(dir.path());
  EXPECT_LE(file.resident_bytes(), 4'096U);
  EXPECT_EQ(directory.tensors().size(), 1U);
}

TEST(Loader, ADirectLoadLeavesThePageCacheAlone) {
  const RandomModel model(17);
  const auto directory = ModelDirectory::open(model.path());
  const std::string path = directory.files()[0].path();
  io::File::open(path, io::OpenMode::kReadWrite).sync();
  const auto file = io::File::open(path, io::OpenMode::kRead);
  file.drop_cache({});
  if (file.resident_bytes() != 0) GTEST_SKIP() << "the page cache does not let go of the file here";
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  (void)load_tensors(directory, loads, sink, small_chunks(LoadPath::kDirect));
  // The last bytes, which fill no unit of direct I/O, are read through a page or two, with read-ahead.
  EXPECT_LE(file.resident_bytes(), std::uint64_t{128} << 10);
}

}  // namespace
}  // namespace metrale::weights
