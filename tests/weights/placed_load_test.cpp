// SPDX-License-Identifier: Apache-2.0
// Loads that are read to where they belong: the bytes, what lies beside them, and that nobody copies.
#include <cstring>
#include <tuple>

#include <gmock/gmock.h>

#include <metrale/backends/cpu.h>
#include <metrale/base/aligned_buffer.h>
#include <metrale/base/checked.h>
#include <metrale/base/error.h>
#include <metrale/io/fault.h>
#include <metrale/weights/device_sink.h>
#include <metrale/weights/file_layout.h>

#include "weights/chunk_reads.h"
#include "weights/loader_support.h"

namespace metrale::weights {
namespace {

constexpr std::byte kGuard{0xA5};
constexpr std::size_t kPages = kFileLayoutAlignment;

// Memory in which every load has a place, all else is guarded, and a place is offered where `offers` says so.
class PlacingSink final : public PieceSink {
 public:
  PlacingSink(const std::vector<TensorLoad>& loads, FileLayout layout, std::vector<bool> offers = {})
      : loads_(loads),
        layout_(std::move(layout)),
        offers_(std::move(offers)),
        slab_(round_up(layout_.size_bytes + kPages, kPages), kPages) {
    std::fill(slab_.span().begin(), slab_.span().end(), kGuard);
  }

  [[nodiscard]] Bytes bytes(std::size_t load) const {
    const auto got = slab_.span().subspan(layout_.offsets[load], loads_[load].size_bytes);
    return {got.begin(), got.end()};
  }
  [[nodiscard]] bool guards_are_whole() const {
    std::vector<bool> is_taken(slab_.size_bytes());
    for (std::size_t i = 0; i < loads_.size(); ++i) {
      const auto first = is_taken.begin() + static_cast<std::ptrdiff_t>(layout_.offsets[i]);
      std::fill(first, first + static_cast<std::ptrdiff_t>(loads_[i].size_bytes), true);
    }
    for (std::size_t i = 0; i < is_taken.size(); ++i) {
      if (!is_taken[i] && slab_.span()[i] != kGuard) return false;
    }
    return true;
  }
  [[nodiscard]] std::uint64_t placed_bytes() const { return placed_bytes_; }
  [[nodiscard]] std::uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  [[nodiscard]] std::byte* do_place(std::size_t load, std::uint64_t bytes) const override {
    EXPECT_EQ(bytes, loads_[load].size_bytes);
    return offers_.empty() || offers_[load] ? at(load) : nullptr;
  }
  void do_take(const Piece& piece) override {
    if (piece.bytes.empty()) return;
    std::byte* const to = at(piece.load) + piece.offset_bytes;
    if (piece.bytes.data() == to) {
      placed_bytes_ += piece.bytes.size();
      return;
    }
    copied_bytes_ += piece.bytes.size();
    std::memcpy(to, piece.bytes.data(), piece.bytes.size());
  }
  [[nodiscard]] std::byte* at(std::size_t load) const {
    return const_cast<std::byte*>(slab_.span().data()) + layout_.offsets[load];
  }

  const std::vector<TensorLoad>& loads_;
  FileLayout layout_;
  std::vector<bool> offers_;
  AlignedBuffer slab_;
  std::uint64_t placed_bytes_ = 0;
  std::uint64_t copied_bytes_ = 0;
};

void expect_bytes(const RandomModel& model, const std::vector<TensorLoad>& loads, const PlacingSink& sink) {
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const Bytes& whole = model.bytes(loads[i].tensor.info().name);
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(loads[i].begin_bytes);
    ASSERT_EQ(sink.bytes(i), Bytes(first, first + static_cast<std::ptrdiff_t>(loads[i].size_bytes)));
  }
  EXPECT_TRUE(sink.guards_are_whole());
}

// Random ranges of tensors, in a random order.
std::vector<TensorLoad> random_ranges(const ModelDirectory& directory, std::mt19937_64& random) {
  std::vector<TensorLoad> loads;
  for (const TensorRef& tensor : directory.tensors()) {
    const std::uint64_t width = bits(tensor.info().dtype) / 8;
    const std::uint64_t count = tensor.info().size_bytes / width;
    const std::uint64_t first = count == 0 || random() % 2 == 0 ? 0 : random() % count;
    const std::uint64_t size = random() % 2 == 0 ? count - first : random() % (count - first + 1);
    if (random() % 4 != 0) loads.push_back({tensor, first * width, size * width});
  }
  std::shuffle(loads.begin(), loads.end(), random);
  return loads;
}

// Places in line with the files for some, anywhere for others, with room in between.
FileLayout random_layout(const std::vector<TensorLoad>& loads, std::mt19937_64& random) {
  FileLayout layout = file_layout(loads);
  for (std::size_t i = 0; i < loads.size(); ++i) {
    if (random() % 3 != 0) continue;
    layout.offsets[i] = layout.size_bytes + random() % 700;
    layout.size_bytes = layout.offsets[i] + loads[i].size_bytes;
  }
  return layout;
}

class PlacedLoad : public testing::TestWithParam<std::tuple<LoadPath, io::IoEngineKind>> {
 protected:
  [[nodiscard]] static LoadOptions options() {
    return small_chunks(std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
};

TEST_P(PlacedLoad, WholeModelsAreReadToWhereTheyBelong) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const RandomModel model(seed);
    const auto directory = ModelDirectory::open(model.path());
    const auto loads = load_all(directory);
    PlacingSink sink(loads, file_layout(loads));
    const LoadReport report = load_tensors(directory, loads, sink, options());
    expect_bytes(model, loads, sink);
    // All but chunks of less than a unit of direct I/O.
    EXPECT_LE(sink.copied_bytes(), 2U * 4'096);
    EXPECT_EQ(sink.copied_bytes() + sink.placed_bytes(), directory.total_bytes());
    for (const FileLoad& file : report.files) ASSERT_EQ(file.used, options().path);
    EXPECT_LE(report.read_bytes, directory.total_bytes() + report.chunks * 2 * 4'096);
  }
}

TEST_P(PlacedLoad, RangesAnywhereLeaveTheirNeighboursAlone) {
  std::mt19937_64 random(31);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const RandomModel model(seed % 5);
    const auto directory = ModelDirectory::open(model.path());
    const auto loads = random_ranges(directory, random);
    std::vector<bool> offers;
    for (std::size_t i = 0; i < loads.size(); ++i) offers.push_back(random() % 4 != 0);
    PlacingSink sink(loads, random_layout(loads, random), offers);
    (void)load_tensors(directory, loads, sink, options());
    expect_bytes(model, loads, sink);
  }
}

// Side by side in memory, but not in the file: what lies between them there must go nowhere.
TEST_P(PlacedLoad, PlacesInLineOfTensorsThatAreApartGetNothingFromBetween) {
  const TempDir dir;
  std::mt19937_64 random(35);
  std::vector<Bytes> data;
  for (const std::size_t size : {50'000U, 3'000U, 4'096U, 50'000U, 200'000U, 1'000U, 300'000U}) {
    data.push_back(random_bytes(random, size));
  }
  std::vector<TensorData> tensors;
  for (std::size_t i = 0; i < data.size(); ++i) {
    tensors.push_back({fmt::format("t{}", i), DType::kU8, {data[i].size()}, data[i]});
  }
  write_safetensors(dir.file("model.safetensors"), tensors);
  const auto directory = ModelDirectory::open(dir.path());
  std::vector<TensorLoad> loads;
  std::vector<std::size_t> which{0, 2, 3, 4, 6};
  for (const std::size_t i : which) loads.push_back(TensorLoad::whole(*directory.find(tensors[i].name)));
  FileLayout packed;
  packed.size_bytes = loads[0].tensor.info().offset_bytes % kFileLayoutAlignment;
  for (const TensorLoad& load : loads) {
    packed.offsets.push_back(packed.size_bytes);
    packed.size_bytes += load.size_bytes;
  }
  PlacingSink sink(loads, packed);
  LoadOptions load = options();
  load.chunk_bytes = std::uint64_t{1} << 20;
  load.staging_bytes = 0;
  (void)load_tensors(directory, loads, sink, load);
  for (std::size_t i = 0; i < which.size(); ++i) EXPECT_EQ(sink.bytes(i), data[which[i]]);
  EXPECT_TRUE(sink.guards_are_whole());
}

// The right bytes, or an error with file and cause; in both cases nothing beside them.
TEST_P(PlacedLoad, FaultsEndInTheRightBytesOrInAnError) {
  const RandomModel model(32);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  int whole = 0;
  for (std::uint64_t seed = 0; seed < 250; ++seed) {
    SCOPED_TRACE(seed);
    PlacingSink sink(loads, file_layout(loads));
    LoadOptions load = options();
    load.make_engine = faulty_engine(seed);
    try {
      (void)load_tensors(directory, loads, sink, load);
      expect_bytes(model, loads, sink);
      ++whole;
    } catch (const IoError& error) {
      EXPECT_EQ(seed % 4, 0U) << error.what();
      EXPECT_NE(error.error_number(), 0);
      EXPECT_THAT(error.what(),
                  testing::AllOf(testing::HasSubstr(".safetensors"), testing::HasSubstr("from byte")));
      EXPECT_TRUE(sink.guards_are_whole());
    }
  }
  EXPECT_GT(whole, 180);
  EXPECT_LT(whole, 250);
}

INSTANTIATE_TEST_SUITE_P(Reads, PlacedLoad,
                         testing::Combine(testing::Values(LoadPath::kDirect, LoadPath::kBuffered),
                                          testing::Values(io::IoEngineKind::kUring,
                                                          io::IoEngineKind::kPosix)),
                         [](const auto& instance) {
                           return fmt::format("{}_{}", to_string(std::get<0>(instance.param)),
                                              static_cast<int>(std::get<1>(instance.param)));
                         });

TEST(ChunkReadsTest, PlacesFitWhereUnitsAreAsAlignedInMemoryAsTheyMustBe) {
  const AlignedBuffer memory(8 * kPages, kPages);
  LoadShard shard;
  shard.load.used = LoadPath::kDirect;
  shard.size_bytes = std::uint64_t{1} << 20;
  shard.alignment = 512;
  shard.memory_alignment = 4'096;
  // Byte 512 of the file, the first of a whole unit, is the 413th of the chunk.
  Chunk chunk{.begin = 100, .end = 9'000, .place = memory.data() + kPages - 412};
  EXPECT_TRUE(ChunkReads::fits_place(chunk, shard));
  chunk.place += 512;
  EXPECT_FALSE(ChunkReads::fits_place(chunk, shard));
  shard.memory_alignment = 512;
  EXPECT_TRUE(ChunkReads::fits_place(chunk, shard));
  chunk.end = 900;  // no whole unit
  EXPECT_FALSE(ChunkReads::fits_place(chunk, shard));
  shard.load.used = LoadPath::kBuffered;
  EXPECT_TRUE(ChunkReads::fits_place(chunk, shard));
  shard.load.used = LoadPath::kMap;
  EXPECT_FALSE(ChunkReads::fits_place(chunk, shard));
}

// ---- host memory as device memory

class PlacedInDeviceMemory : public testing::Test {
 protected:
  PlacedInDeviceMemory()
      : model_(33),
        directory_(ModelDirectory::open(model_.path())),
        loads_(load_all(directory_)),
        layout_(file_layout(loads_)),
        gpu_(backends::make_cpu_backend({}, {})),
        slab_(*gpu_, layout_.size_bytes + kFileLayoutAlignment) {}

  [[nodiscard]] std::vector<TensorTarget> targets() const {
    const DevicePtr base(round_up(slab_.ptr().address(), kFileLayoutAlignment));
    std::vector<TensorTarget> targets;
    for (const std::uint64_t offset : layout_.offsets) {
      targets.push_back({.address = base.offset(offset), .convert = {}});
    }
    return targets;
  }

  RandomModel model_;
  ModelDirectory directory_;
  std::vector<TensorLoad> loads_;
  FileLayout layout_;
  std::unique_ptr<gpu::GpuBackend> gpu_;
  gpu::DeviceBuffer slab_;
};

TEST_F(PlacedInDeviceMemory, IsReadIntoAndNotCopied) {
  for (const LoadPath path : {LoadPath::kDirect, LoadPath::kBuffered, LoadPath::kMap}) {
    SCOPED_TRACE(to_string(path));
    gpu_->memset_blocking(slab_.ptr(), 0, slab_.size_bytes());
    const std::uint64_t before = gpu_->stats().h2d_bytes;
    const auto where = targets();
    DeviceSink sink(*gpu_, where);
    (void)load_tensors(directory_, loads_, sink, small_chunks(path));
    const std::uint64_t copied = gpu_->stats().h2d_bytes - before;
    if (path == LoadPath::kMap) {
      EXPECT_EQ(copied, directory_.total_bytes());
    } else {
      EXPECT_LE(copied, 2U * 4'096);
    }
    for (std::size_t i = 0; i < loads_.size(); ++i) {
      Bytes got(loads_[i].size_bytes);
      gpu_->copy_d2h_blocking(got, where[i].address);
      ASSERT_EQ(got, model_.bytes(loads_[i].tensor.info().name));
    }
  }
}

TEST_F(PlacedInDeviceMemory, TargetsThatLeaveTheirAllocationAreRefused) {
  auto where = targets();
  for (TensorTarget& target : where) target.address = slab_.ptr().offset(slab_.size_bytes() - 1);
  DeviceSink sink(*gpu_, where);
  EXPECT_THROW((void)load_tensors(directory_, loads_, sink, small_chunks()), InvalidArgument);
}

// ---- file_layout

TEST(FileLayoutTest, KeepsNeighboursTogetherAndOffsetsModuloAPage) {
  std::mt19937_64 random(34);
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const RandomModel model(seed);
    const auto directory = ModelDirectory::open(model.path());
    const auto loads = random_ranges(directory, random);
    const FileLayout layout = file_layout(loads);
    ASSERT_EQ(layout.offsets.size(), loads.size());
    const auto in_file = [&](std::size_t i) {
      return loads[i].tensor.info().offset_bytes + loads[i].begin_bytes;
    };
    for (std::size_t i = 0; i < loads.size(); ++i) {
      if (loads[i].size_bytes == 0) continue;
      EXPECT_EQ(layout.offsets[i] % kFileLayoutAlignment, in_file(i) % kFileLayoutAlignment);
      EXPECT_LE(layout.offsets[i] + loads[i].size_bytes, layout.size_bytes);
      for (std::size_t k = 0; k < loads.size(); ++k) {
        if (k == i || loads[k].size_bytes == 0) continue;
        EXPECT_TRUE(layout.offsets[i] + loads[i].size_bytes <= layout.offsets[k] ||
                    layout.offsets[k] + loads[k].size_bytes <= layout.offsets[i]);
        if (loads[i].tensor.file_index() == loads[k].tensor.file_index() &&
            in_file(i) + loads[i].size_bytes == in_file(k)) {
          EXPECT_EQ(layout.offsets[i] + loads[i].size_bytes, layout.offsets[k]);
        }
      }
    }
  }
}

TEST(FileLayoutTest, OfNothingIsNothing) {
  EXPECT_EQ(file_layout({}).size_bytes, 0U);
}

}  // namespace
}  // namespace metrale::weights
