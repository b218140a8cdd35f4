// SPDX-License-Identifier: Apache-2.0
// The harness of the suite of I/O queues. A new engine adds a QueueCase in a test program of its own and
// links the suite's sources.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/error.h>
#include <metrale/io/fault.h>
#include <metrale/io/io_queue.h>

#include "support/temp_dir.h"

namespace metrale::io {

struct QueueCase {
  std::string name;
  std::function<std::unique_ptr<IoEngine>(const EngineLimits&)> make;
  std::uint64_t random_seeds = 1'000;
};
inline void PrintTo(const QueueCase& queue, std::ostream* out) {
  *out << queue.name;
}

// Bytes that tell their place in the file.
[[nodiscard]] inline std::vector<std::byte> numbered_bytes(std::size_t count, std::uint64_t first = 0) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((first + i) * 0x9E3779B97F4A7C15U >> 56);
  }
  return bytes;
}

class IoQueueConformance : public testing::TestWithParam<QueueCase> {
 protected:
  static constexpr std::size_t kPage = 4096;

  IoQueueConformance() { open({.depth = 8, .max_files = 4, .max_buffers = 4}); }

  // A new queue behind a new fault engine.
  void open(const EngineLimits& limits, const IoFaultRates& rates = {}) {
    auto faults = std::make_unique<FaultEngine>(GetParam().make(limits), rates);
    faults_ = faults.get();
    queue_ = std::make_unique<IoQueue>(std::move(faults));
  }

  [[nodiscard]] File new_file(std::size_t bytes, const char* name = "file") {
    File file = File::open(dir_.file(name), OpenMode::kCreate);
    file.write_at(numbered_bytes(bytes), 0);
    return file;
  }

  RequestId prepare(const IoRequest& request) {
    const std::optional<RequestId> id = queue_->prepare(request);
    if (!id) throw std::runtime_error("the queue is full");
    return *id;
  }
  // Submits, and waits for so many completions, in the order in which they come.
  std::vector<Completion> finish(std::size_t count) {
    queue_->submit();
    std::vector<Completion> done(count);
    done.resize(queue_->poll(done, count));
    return done;
  }
  Completion run(const IoRequest& request) {
    prepare(request);
    const std::vector<Completion> done = finish(1);
    return done.empty() ? throw std::runtime_error("nothing was delivered") : done[0];
  }

  [[nodiscard]] std::span<std::byte> page(std::size_t index, std::size_t pages = 1) {
    return memory_.span().subspan(index * kPage, pages * kPage);
  }
  [[nodiscard]] static std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
    return {bytes.begin(), bytes.end()};
  }
  [[nodiscard]] static std::vector<std::byte> content(const File& file, std::size_t bytes,
                                                      std::uint64_t offset = 0) {
    std::vector<std::byte> read(bytes);
    file.read_at(read, offset);
    return read;
  }

  TempDir dir_;
  AlignedBuffer memory_{64 * kPage, kPage};
  FaultEngine* faults_ = nullptr;
  std::unique_ptr<IoQueue> queue_;
};

// With a file that is registered already.
class IoQueueFaults : public IoQueueConformance {
 protected:
  IoQueueFaults() : file_(new_file(kBytes)), id_(queue_->register_file(file_)) {}
  void TearDown() override { queue_.reset(); }  // before the file that it reads

  static constexpr std::size_t kBytes = 16 * kPage;

  void expect_whole(const Completion& done) {
    EXPECT_EQ(done.status, IoStatus::kComplete);
    EXPECT_EQ(done.bytes, done.wanted_bytes);
    EXPECT_THAT(copy_of(memory_.span().first(done.bytes)),
                testing::ElementsAreArray(numbered_bytes(done.bytes, done.offset)));
  }

  File file_;
  FileId id_;
};

}  // namespace metrale::io
