// SPDX-License-Identifier: Apache-2.0
// The ring that chunks are read into: its shape, and that its memory is read into again as soon as it may be.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include <metrale/base/error.h>
#include <metrale/gpu/buffer.h>
#include <metrale/gpu/mock.h>
#include <metrale/io/file.h>
#include <metrale/io/make_queue.h>
#include <metrale/weights/device_sink.h>
#include <metrale/weights/file_layout.h>

#include "weights/loader_support.h"

namespace metrale::weights {
namespace {

constexpr std::size_t kSlots = 4;

// Hands on what it is asked for.
class PassingEngine : public io::IoEngine {
 protected:
  explicit PassingEngine(const io::IoOptions& options)
      : io::IoEngine(options.limits), inner_(io::make_io_engine(options)) {}
  [[nodiscard]] std::size_t do_submit(std::span<const io::RawTransfer> transfers) override {
    return inner_->submit(transfers);
  }
  [[nodiscard]] std::size_t do_reap(std::span<io::RawCompletion> out, io::IoTime deadline) override {
    return inner_->reap(out, deadline);
  }

 private:
  [[nodiscard]] std::string_view do_name() const override { return "passing"; }
  [[nodiscard]] io::IoCapabilities do_capabilities() const override {
    return {.max_depth = inner_->capabilities().max_depth};
  }

  std::unique_ptr<io::IoEngine> inner_;
};

// Counts how many reads come at a time.
class CountingEngine final : public PassingEngine {
 public:
  CountingEngine(const io::IoOptions& options, std::size_t& most) : PassingEngine(options), most_(most) {}

 private:
  [[nodiscard]] std::size_t do_submit(std::span<const io::RawTransfer> transfers) override {
    most_ = std::max(most_, transfers.size());
    return PassingEngine::do_submit(transfers);
  }

  std::size_t& most_;
};

// Gives answers only when nothing more is to be read, and then all: as a virtual disk whose queue is worked
// off before its guest hears of it.
class BatchEngine final : public PassingEngine {
 public:
  BatchEngine(const io::IoOptions& options, std::size_t& out, std::size_t& most_out)
      : PassingEngine(options), out_(out), most_out_(most_out) {}

 private:
  [[nodiscard]] std::size_t do_submit(std::span<const io::RawTransfer> transfers) override {
    const std::size_t taken = PassingEngine::do_submit(transfers);
    out_ += taken;
    most_out_ = std::max(most_out_, out_);
    return taken;
  }
  [[nodiscard]] std::size_t do_reap(std::span<io::RawCompletion> out, io::IoTime) override {
    std::size_t count = 0;
    while (count < std::min(out.size(), out_))
      count += PassingEngine::do_reap(out.subspan(count), io::kForever);
    out_ -= count;
    return count;
  }

  std::size_t& out_;
  std::size_t& most_out_;
};

// Gives one answer, and no other before more reads were submitted than the ring holds at a time.
class HoldingEngine final : public PassingEngine {
 public:
  // Of `has_given_up`: somebody would have waited for ever.
  HoldingEngine(const io::IoOptions& options, bool& has_given_up)
      : PassingEngine(options), has_given_up_(has_given_up) {}

 private:
  [[nodiscard]] std::size_t do_submit(std::span<const io::RawTransfer> transfers) override {
    const std::size_t taken = PassingEngine::do_submit(transfers);
    submitted_ += taken;
    return taken;
  }
  [[nodiscard]] std::size_t do_reap(std::span<io::RawCompletion> out, io::IoTime deadline) override {
    if (!has_answered_) {
      const std::size_t count = PassingEngine::do_reap(out.first(1), deadline);
      has_answered_ = count != 0;
      return count;
    }
    if (submitted_ <= kSlots && !has_given_up_) {
      if (deadline != io::kForever) return 0;
      has_given_up_ = true;
    }
    return PassingEngine::do_reap(out, deadline);
  }

  bool& has_given_up_;
  std::size_t submitted_ = 0;
  bool has_answered_ = false;
};

// Shards of one tensor each, of so many bytes.
class Shards {
 public:
  explicit Shards(const std::vector<std::size_t>& sizes) {
    std::mt19937_64 random(31);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Bytes data = random_bytes(random, sizes[i]);
      const std::string name = fmt::format("t{}", i);
      write_safetensors(path(i), std::vector<TensorData>{{name, DType::kU8, {data.size()}, data}});
    }
  }
  [[nodiscard]] std::string path(std::size_t shard) const {
    return dir_.file(fmt::format("model-{}.safetensors", shard));
  }
  [[nodiscard]] ModelDirectory open() const { return ModelDirectory::open(dir_.path()); }
  // Of one shard out of the page cache; false where it stays there.
  [[nodiscard]] bool make_cold(std::size_t shard) const {
    io::File::open(path(shard), io::OpenMode::kReadWrite).sync();
    auto file = io::File::open(path(shard), io::OpenMode::kRead);
    file.drop_cache({});
    return file.resident_bytes() == 0;
  }

 private:
  TempDir dir_;
};

// Into the page cache; its bytes.
std::uint64_t read_whole(const std::string& path) {
  Bytes bytes(std::filesystem::file_size(path));
  return io::File::open(path, io::OpenMode::kRead).read_up_to(bytes, 0);
}

// Uses each chunk a while longer.
class LingeringSink final : public PieceSink {
 public:
  [[nodiscard]] std::uint64_t taken_bytes() const { return taken_bytes_; }

 private:
  [[nodiscard]] RingShape do_wanted_ring(LoadPath) const override { return kDeviceRing; }
  [[nodiscard]] bool do_wants_order() const override { return false; }
  void do_take(const Piece& piece) override { taken_bytes_ += piece.bytes.size(); }
  void do_end_chunk(std::size_t) override { questions_ = 0; }
  [[nodiscard]] bool do_is_free(std::size_t, bool wait) override { return wait || ++questions_ > 3; }

  std::uint64_t taken_bytes_ = 0;
  int questions_ = 0;
};

// A disk that completes many reads at a time would else be left with the few that came back first.
TEST(LoadRing, MemoryThatTheSinkIsDoneWithIsReadIntoWhileOtherReadsAreOut) {
  constexpr std::size_t kBytes = std::size_t{128} << 10;
  const Shards shards({kBytes});
  const auto directory = shards.open();
  const auto loads = load_all(directory);
  bool has_given_up = false;
  LoadOptions load;
  load.path = LoadPath::kBuffered;
  load.chunk_bytes = std::uint64_t{16} << 10;
  load.staging_bytes = kSlots * RingShape{.chunk_bytes = load.chunk_bytes}.slot_bytes();
  load.make_engine = [&](const io::IoOptions& options) {
    return std::make_unique<HoldingEngine>(options, has_given_up);
  };
  LingeringSink sink;
  (void)load_tensors(directory, loads, sink, load);
  EXPECT_EQ(sink.taken_bytes(), kBytes);
  EXPECT_FALSE(has_given_up);
}

// Takes pieces where a test can see what else is under way.
class WatchingSink final : public PieceSink {
 public:
  WatchingSink(RingShape ring, std::function<void()> on_piece)
      : ring_(ring), on_piece_(std::move(on_piece)) {}

 private:
  [[nodiscard]] RingShape do_wanted_ring(LoadPath) const override { return ring_; }
  [[nodiscard]] bool do_wants_order() const override { return false; }
  void do_take(const Piece&) override { on_piece_(); }

  RingShape ring_;
  std::function<void()> on_piece_;
};

// When a batch has come the next one must be out before the sink spends its time on the first.
TEST(LoadRing, HalfOfItIsReadWhileTheSinkCopiesTheOtherHalf) {
  constexpr std::size_t kChunk = std::size_t{16} << 10;
  constexpr std::size_t kChunks = 64;
  const Shards shards({kChunks * kChunk});
  const auto directory = shards.open();
  const auto loads = load_all(directory);
  for (const bool reads_half : {true, false}) {
    RingShape ring{.chunk_bytes = kChunk, .reads_half = reads_half};
    ring.staging_bytes = 8 * ring.slot_bytes();
    std::size_t out = 0;
    std::size_t most_out = 0;
    std::size_t pieces = 0;
    std::size_t pieces_with_none_out = 0;
    WatchingSink sink(ring, [&] {
      ++pieces;
      if (out == 0 && pieces < kChunks - 8) ++pieces_with_none_out;
    });
    LoadOptions load;
    load.path = LoadPath::kBuffered;
    load.make_engine = [&](const io::IoOptions& options) {
      return std::make_unique<BatchEngine>(options, out, most_out);
    };
    (void)load_tensors(directory, loads, sink, load);
    EXPECT_GE(pieces, kChunks);
    EXPECT_EQ(most_out, reads_half ? 4U : 8U);
    EXPECT_EQ(pieces_with_none_out == 0, reads_half);
  }
}

TEST(LoadRing, ToADeviceIsThatOfThePathByWhichFilesAreRead) {
  const RandomModel model(32);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  const auto gpu = gpu::make_mock_backend({});
  const FileLayout layout = file_layout(loads);
  const gpu::DeviceBuffer slab(*gpu, layout.size_bytes);
  std::vector<TensorTarget> targets;
  for (const std::uint64_t offset : layout.offsets) {
    targets.push_back({.address = slab.ptr().offset(offset), .convert = {}});
  }
  for (const auto& [path, ring] :
       {std::pair(LoadPath::kDirect, kDirectDeviceRing), {LoadPath::kBuffered, kDeviceRing}}) {
    DeviceSink sink(*gpu, targets);
    LoadOptions load;
    load.path = path;
    const LoadReport report = load_tensors(directory, loads, sink, load);
    EXPECT_EQ(report.files.front().used, path);
    EXPECT_EQ(report.chunk_bytes, ring.chunk_bytes);
    EXPECT_LE(report.staging_bytes, ring.staging_bytes);
    EXPECT_EQ(ring_of({}, DeviceSink(*gpu, {}), path), ring);
  }
}

TEST(LoadRing, OfShardsBesideAndInThePageCacheIsThatOfMostBytes) {
  constexpr std::size_t kBytes = std::size_t{512} << 10;
  const Shards shards({kBytes / 4, kBytes});
  const auto directory = shards.open();
  const auto loads = load_all(directory);
  const auto gpu = gpu::make_mock_backend({});
  const gpu::DeviceBuffer slab(*gpu, 2 * kBytes);
  for (const std::size_t cold : {0U, 1U}) {
    ASSERT_EQ(read_whole(shards.path(1 - cold)), std::filesystem::file_size(shards.path(1 - cold)));
    if (!shards.make_cold(cold)) GTEST_SKIP() << "the page cache does not let go of the file here";
    DeviceSink sink(*gpu, {{.address = slab.ptr(), .convert = {}},
                           {.address = slab.ptr().offset(kBytes), .convert = {}}});
    const LoadReport report = load_tensors(directory, loads, sink);
    ASSERT_EQ(report.files[cold].used, LoadPath::kDirect);
    ASSERT_EQ(report.files[1 - cold].used, LoadPath::kBuffered);
    EXPECT_EQ(report.chunk_bytes, (cold == 1 ? kDirectDeviceRing : kDeviceRing).chunk_bytes);
  }
}

TEST(LoadRing, ReadsOfADevicesDirectLoadAreHandedOverOneByOne) {
  constexpr std::size_t kBytes = std::size_t{512} << 10;
  const Shards shards({kBytes});
  const auto directory = shards.open();
  const auto loads = load_all(directory);
  const auto gpu = gpu::make_mock_backend({});
  const gpu::DeviceBuffer slab(*gpu, kBytes);
  const auto most_at_a_time = [&](LoadPath path) {
    std::size_t most = 0;
    LoadOptions load;
    load.path = path;
    load.chunk_bytes = std::uint64_t{16} << 10;
    load.make_engine = [&](const io::IoOptions& options) {
      return std::make_unique<CountingEngine>(options, most);
    };
    DeviceSink sink(*gpu, {{.address = slab.ptr(), .convert = {}}});
    const LoadReport report = load_tensors(directory, loads, sink, load);
    EXPECT_EQ(report.files.front().used, path);
    return most;
  };
  // A chunk's edges are read with it.
  EXPECT_LE(most_at_a_time(LoadPath::kDirect), 3U);
  EXPECT_GT(most_at_a_time(LoadPath::kBuffered), 16U);
}

TEST(LoadRing, StagingThatIsTooSmallForTheWantedChunksHoldsSmallerOnes) {
  CallbackSink sink([](const Piece&) {});
  LoadOptions small;
  small.staging_bytes = std::uint64_t{1} << 20;
  const RingShape ring = ring_of(small, sink, LoadPath::kBuffered);
  EXPECT_LT(ring.chunk_bytes, kHostRing.chunk_bytes);
  EXPECT_GE(ring.chunk_bytes, std::uint64_t{200} << 10);
  EXPECT_EQ(ring.slots(), 4U);
  small.staging_bytes = std::uint64_t{128} << 10;
  EXPECT_EQ(ring_of(small, sink, LoadPath::kBuffered).slots(), 4U);
  small.staging_bytes = std::uint64_t{16} << 10;
  EXPECT_THROW((void)ring_of(small, sink, LoadPath::kBuffered), InvalidArgument);
}

TEST(LoadRing, RefusesStagingThatIsTooSmallOrTooLarge) {
  const RandomModel model(15);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  CollectingSink sink(loads);
  LoadOptions small = small_chunks();
  small.staging_bytes = small.chunk_bytes * 2;
  EXPECT_THROW((void)load_tensors(directory, loads, sink, small), InvalidArgument);
  LoadOptions large;
  large.staging_bytes = kMaxStagingBytes + 1;
  EXPECT_THROW((void)load_tensors(directory, loads, sink, large), InvalidArgument);
}

TEST(LoadRing, IsWhatIsAskedForAndHoldsFourChunks) {
  CallbackSink sink([](const Piece&) {});
  const auto ring_by = [&](LoadPath used, const LoadOptions& options = {}) {
    return ring_of(options, sink, used);
  };
  EXPECT_EQ(ring_by(LoadPath::kBuffered), kHostRing);
  EXPECT_EQ(ring_by(LoadPath::kDirect), kHostRing);
  LoadOptions large;
  large.chunk_bytes = std::uint64_t{16} << 20;
  for (const LoadPath path : {LoadPath::kDirect, LoadPath::kBuffered}) {
    EXPECT_EQ(ring_by(path, large).chunk_bytes, large.chunk_bytes);
    EXPECT_EQ(ring_by(path, large).slots(), 4U);
    EXPECT_GT(ring_by(path, large).staging_bytes, 4 * large.chunk_bytes);
  }
  large.staging_bytes = 4 * large.chunk_bytes;
  EXPECT_THROW((void)ring_by(LoadPath::kDirect, large), InvalidArgument) << "chunks have edges";
  large.chunk_bytes = std::uint64_t{63} << 20;
  large.staging_bytes = 0;
  EXPECT_LE(ring_by(LoadPath::kDirect, large).staging_bytes, kMaxStagingBytes);
}

}  // namespace
}  // namespace metrale::weights
