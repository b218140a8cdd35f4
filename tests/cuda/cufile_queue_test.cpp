// SPDX-License-Identifier: Apache-2.0
// The suite of I/O queues over cuFile itself, and what only a device can show: transfers to and from its
// memory.
#include <random>

#include <metrale/gpu/buffer.h>
#include <metrale/io/make_queue.h>

#include "conformance/io_queue_conformance.h"
#include "cuda/support/devices.h"

namespace metrale::io {
namespace {

// Outlives every queue of this program: the threads of cuFile's engine work in its context.
gpu::GpuBackend& device() {
  static const std::unique_ptr<gpu::GpuBackend> gpu = test::open_cuda();
  return *gpu;
}

std::unique_ptr<IoEngine> make_cufile(const EngineLimits& limits) {
  device().bind_to_thread();
  return make_io_engine(
      {.kind = IoEngineKind::kCufile, .limits = limits, .threads = 2, .on_thread_start = [] {
         device().bind_to_thread();
       }});
}

// Each transfer of cuFile costs far more than one of the system.
const auto kQueues = testing::Values(QueueCase{"Cufile", make_cufile, 50});

std::string name_of(const testing::TestParamInfo<QueueCase>& queue) {
  return queue.param.name;
}

INSTANTIATE_TEST_SUITE_P(Queues, IoQueueConformance, kQueues, name_of);
INSTANTIATE_TEST_SUITE_P(Queues, IoQueueFaults, kQueues, name_of);

class CufileOnDevice : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = std::size_t{5} << 20;

  CufileOnDevice() : content_(numbered_bytes(kBytes + 777)) {
    file_.write_at(content_, 0);
    id_ = queue_->register_file(file_);
  }
  void TearDown() override { queue_.reset(); }

  Completion run(const IoRequest& request) {
    EXPECT_TRUE(queue_->prepare(request).has_value());
    queue_->submit();
    std::vector<Completion> done(1);
    EXPECT_EQ(queue_->poll(done, 1), 1U);
    return done[0];
  }
  [[nodiscard]] std::vector<std::byte> on_device(std::uint64_t offset, std::size_t bytes) const {
    std::vector<std::byte> got(bytes);
    device().copy_d2h_blocking(got, memory_.ptr().offset(offset));
    return got;
  }
  [[nodiscard]] std::vector<std::byte> in_file(std::uint64_t offset, std::size_t bytes) const {
    std::vector<std::byte> got(bytes);
    file_.read_at(got, offset);
    return got;
  }

  TempDir dir_;
  std::vector<std::byte> content_;
  File file_ = File::open(dir_.file("file"), OpenMode::kCreate);
  gpu::DeviceBuffer memory_{device(), kBytes + 4'096};
  std::unique_ptr<IoQueue> queue_ =
      std::make_unique<IoQueue>(make_cufile({.depth = 8, .max_files = 4, .max_buffers = 4}));
  FileId id_;
};

TEST_F(CufileOnDevice, FilesAreReadToAnyPlaceOfItsMemory) {
  std::mt19937_64 random(41);
  const BufferId registered = queue_->register_buffer(memory_.ptr(), memory_.size_bytes());
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    const std::uint64_t from = random() % kBytes;
    const std::uint64_t size = 1 + random() % std::min<std::uint64_t>(kBytes - from, 1U << (10 + round % 12));
    const std::uint64_t to = random() % (memory_.size_bytes() - size - 1) + 1;
    device().memset_blocking(memory_.ptr(), 0xEE, memory_.size_bytes());
    const Completion done = run(
        read_request(id_, from, memory_.ptr().offset(to), size, 0, round % 2 == 0 ? registered : BufferId{}));
    ASSERT_EQ(done.status, IoStatus::kComplete);
    EXPECT_EQ(on_device(to, size), in_file(from, size));
    EXPECT_EQ(on_device(to - 1, 1)[0], std::byte{0xEE});
    EXPECT_EQ(on_device(to + size, 1)[0], std::byte{0xEE});
  }
}

TEST_F(CufileOnDevice, ItsMemoryIsWrittenToFiles) {
  std::mt19937_64 random(42);
  const std::vector<std::byte> bytes = numbered_bytes(memory_.size_bytes(), 12'345);
  device().copy_h2d_blocking(memory_.ptr(), bytes);
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    const std::uint64_t to = random() % kBytes;
    const std::uint64_t size = 1 + random() % std::min<std::uint64_t>(kBytes - to, 300'000);
    const std::uint64_t from = random() % (memory_.size_bytes() - size);
    const Completion done = run(write_request(id_, to, memory_.ptr().offset(from), size));
    ASSERT_EQ(done.status, IoStatus::kComplete);
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(from);
    EXPECT_EQ(in_file(to, size), std::vector<std::byte>(first, first + static_cast<std::ptrdiff_t>(size)));
  }
}

TEST_F(CufileOnDevice, TheEndOfAFileSaysWhatWasThere) {
  const Completion done = run(read_request(id_, kBytes, memory_.ptr(), 4'096));

  EXPECT_EQ(done.status, IoStatus::kEndOfFile);
  EXPECT_EQ(done.bytes, 777U);
  EXPECT_EQ(on_device(0, 777), in_file(kBytes, 777));
}

TEST_F(CufileOnDevice, ADirectFileIsReadToo) {
  file_.sync();
  std::optional<File> direct = File::try_open_direct(file_.path(), OpenMode::kRead);
  if (!direct) GTEST_SKIP() << "no direct I/O on " << dir_.path();
  const FileId id = queue_->register_file(*direct);
  const Completion done = run(read_request(id, 4'096, memory_.ptr(), std::uint64_t{1} << 20));

  EXPECT_EQ(done.status, IoStatus::kComplete);
  EXPECT_EQ(on_device(0, std::size_t{1} << 20), in_file(4'096, std::size_t{1} << 20));
  queue_.reset();  // before the file that is registered
}

}  // namespace
}  // namespace metrale::io
