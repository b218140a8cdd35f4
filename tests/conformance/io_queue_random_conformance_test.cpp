// SPDX-License-Identifier: Apache-2.0
// Random reads and writes over an engine with random faults, against bytes in memory. Whatever happens, a
// request ends once, in the right bytes or in an error with path, offset and cause, and nothing is left over.
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <random>

#include "conformance/io_queue_conformance.h"

namespace metrale::io {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kFileBytes = 12 * kPage + 1'000;
constexpr std::size_t kSlotBytes = 4 * kPage;  // of memory, for one request and its guards
constexpr std::size_t kGuard = kPage;
constexpr std::byte kUntouched{0xEE};

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

struct Expected {
  IoRequest request;
  std::size_t slot = 0;
};

class RandomRun {
 public:
  RandomRun(IoQueue& queue, const std::string& path, const File& file, std::uint64_t seed, bool may_fail)
      : queue_(queue),
        path_(path),
        may_fail_(may_fail),
        buffered_(File::open(path, OpenMode::kRead)),
        random_(seed),
        granule_(file.is_direct() ? kPage : 1),
        memory_(queue.depth() * kSlotBytes, kPage),
        id_(queue.register_file(file)),
        model_(numbered_bytes(kFileBytes)) {
    // The first half of the slots lies in registered memory.
    buffer_ = queue.register_buffer(memory_.span().first(queue.depth() / 2 * kSlotBytes));
    for (std::size_t slot = 0; slot < queue.depth(); ++slot) free_slots_.push_back(slot);
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      switch (draw(6)) {
        case 0:
          queue_.submit();
          break;
        case 1:
          poll(0);
          break;
        case 2:
          poll(std::min<std::size_t>(1, submitted()));
          break;
        case 3:
          if (!expected_.empty() && draw(4) == 0) release_one();
          break;
        default:
          prepare_one();
      }
    }
    queue_.submit();
    while (!expected_.empty()) {
      const std::size_t before = expected_.size();
      poll(1);
      ASSERT_LT(expected_.size(), before) << "the queue is idle and has not delivered everything";
    }
    EXPECT_EQ(queue_.used_slots(), 0U);
    check_file();
    queue_.unregister_buffer(buffer_);
    queue_.unregister_file(id_);
  }

 private:
  std::size_t draw(std::size_t below) { return random_() % below; }
  [[nodiscard]] std::size_t submitted() const { return expected_.size(); }

  [[nodiscard]] bool overlaps_another(const IoRequest& request) const {
    return std::any_of(expected_.begin(), expected_.end(), [&](const auto& entry) {
      const IoRequest& other = entry.second.request;
      const bool writes = request.kind == IoKind::kWrite || other.kind == IoKind::kWrite;
      return writes && request.offset < other.offset + other.bytes &&
             other.offset < request.offset + request.bytes;
    });
  }

  void prepare_one() {
    if (free_slots_.empty()) return;
    const std::size_t slot = free_slots_.back();
    const bool is_write = draw(2) == 0;
    const std::size_t limit = is_write ? kFileBytes - kFileBytes % granule_ : kFileBytes + kPage;
    const std::size_t offset = draw(limit) / granule_ * granule_;
    std::size_t bytes = (draw(2 * kPage - 1) + 1 + granule_ - 1) / granule_ * granule_;
    if (is_write) bytes = std::min(bytes, limit - offset);
    if (bytes == 0) return;
    const std::span<std::byte> whole = memory_.span().subspan(slot * kSlotBytes, kSlotBytes);
    std::fill(whole.begin(), whole.end(), kUntouched);
    const std::span<std::byte> memory = whole.subspan(kGuard, bytes);
    if (is_write) std::ranges::copy(numbered_bytes(bytes, random_()), memory.begin());

    const BufferId buffer = slot < queue_.depth() / 2 ? buffer_ : BufferId{};
    const IoRequest request = is_write ? write_request(id_, offset, memory, slot, buffer)
                                       : read_request(id_, offset, memory, slot, buffer);
    if (overlaps_another(request)) return;
    const std::optional<RequestId> id = queue_.prepare(request);
    ASSERT_TRUE(id.has_value());
    ASSERT_TRUE(expected_.emplace(*id, Expected{request, slot}).second) << "an id was given twice";
    free_slots_.pop_back();
  }

  void release_one() {
    auto entry = expected_.begin();
    std::advance(entry, draw(expected_.size()));
    if (!queue_.release(entry->first)) return;
    free_slots_.push_back(entry->second.slot);
    expected_.erase(entry);
  }

  void poll(std::size_t at_least) {
    std::vector<Completion> out(1 + draw(4));
    const std::size_t count = queue_.poll(out, at_least, at_least == 0 ? kNoWait : kForever);
    for (std::size_t i = 0; i < count; ++i) {
      const auto entry = expected_.find(out[i].request);
      ASSERT_NE(entry, expected_.end()) << "delivered twice, or never asked for";
      check(out[i], entry->second);
      free_slots_.push_back(entry->second.slot);
      expected_.erase(entry);
    }
  }

  void check(const Completion& done, const Expected& expected) {
    const IoRequest& request = expected.request;
    EXPECT_EQ(done.user_data, request.user_data);
    EXPECT_EQ(done.wanted_bytes, request.bytes);
    if (done.status == IoStatus::kComplete) {
      EXPECT_EQ(done.bytes, request.bytes);
    } else {
      check_error(done);
    }
    const std::span<const std::byte> memory = memory_of(expected);
    if (request.kind == IoKind::kWrite) {
      take_write(done, request, memory);
    } else {
      check_read(done, request, memory);
    }
    check_guards(expected);
  }

  [[nodiscard]] std::span<const std::byte> memory_of(const Expected& expected) const {
    return memory_.span().subspan(expected.slot * kSlotBytes + kGuard, expected.request.bytes);
  }

  void check_error(const Completion& done) {
    const IoError error = queue_.error_of(done);
    EXPECT_EQ(error.path(), path_);
    EXPECT_EQ(error.offset(), done.offset + done.bytes);
    if (done.status == IoStatus::kEndOfFile) {
      EXPECT_EQ(done.kind, IoKind::kRead);
      EXPECT_EQ(error.error_number(), 0);
      EXPECT_EQ(done.bytes, kFileBytes - std::min<std::size_t>(kFileBytes, done.offset));
    } else {
      EXPECT_TRUE(may_fail_) << error.what();
      EXPECT_THAT(error.error_number(), testing::AnyOf(EIO, EINVAL, ENOSPC));
    }
  }

  void check_read(const Completion& done, const IoRequest& request, std::span<const std::byte> memory) {
    ASSERT_LE(done.bytes, memory.size());
    if (done.bytes == 0) return;
    ASSERT_LE(request.offset + done.bytes, kFileBytes);
    EXPECT_TRUE(std::equal(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(done.bytes),
                           model_.begin() + static_cast<std::ptrdiff_t>(request.offset)));
  }

  // What a failed write said it did is there; beyond, each byte is the old one or the new one.
  void take_write(const Completion& done, const IoRequest& request, std::span<const std::byte> memory) {
    Bytes found(request.bytes);
    buffered_.read_at(found, request.offset);
    for (std::size_t i = 0; i < request.bytes; ++i) {
      std::byte& modelled = model_[request.offset + i];
      const bool is_new = found[i] == memory[i];
      ASSERT_TRUE(is_new || (i >= done.bytes && found[i] == modelled)) << "byte " << request.offset + i;
      modelled = found[i];
    }
  }

  void check_guards(const Expected& expected) {
    const std::span<const std::byte> whole = memory_.span().subspan(expected.slot * kSlotBytes, kSlotBytes);
    const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
    EXPECT_TRUE(std::ranges::all_of(whole.first(kGuard), is_untouched));
    EXPECT_TRUE(std::ranges::all_of(whole.subspan(kGuard + expected.request.bytes), is_untouched));
  }

  void check_file() {
    Bytes found(kFileBytes);
    buffered_.read_at(found, 0);
    EXPECT_TRUE(found == model_);
  }

  IoQueue& queue_;
  const std::string& path_;
  bool may_fail_;
  File buffered_;
  std::mt19937_64 random_;
  std::size_t granule_;
  AlignedBuffer memory_;
  FileId id_;
  BufferId buffer_;
  Bytes model_;
  std::vector<std::size_t> free_slots_;
  std::map<RequestId, Expected> expected_;
};

IoFaultRates random_rates(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto rate = [&random] { return random() % 4 == 0 ? static_cast<unsigned>(random() % 300) : 0U; };
  return {.seed = seed,
          .shortened = rate(),
          .interrupted = rate(),
          .again = rate(),
          .failed = rate() / 4,
          .stale = rate(),
          .duplicate = rate(),
          .late = rate(),
          .refused = rate()};
}

TEST_P(IoQueueConformance, RandomWorkEndsInTheRightBytesOrInAnError) {
  const std::size_t descriptors = open_descriptors();
  for (std::uint64_t seed = 1; seed <= GetParam().random_seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    File file = new_file(kFileBytes);
    if (seed % 2 == 0) {
      std::optional<File> direct = File::try_open_direct(file.path(), OpenMode::kReadWrite);
      if (direct) file = std::move(*direct);
    }
    const IoFaultRates rates = random_rates(seed);
    open({.depth = 2 + static_cast<std::uint32_t>(seed % 8), .max_files = 2, .max_buffers = 2}, rates);
    RandomRun(*queue_, file.path(), file, seed, rates.failed != 0).run(60);
    if (HasFailure()) return;
  }
  open({.depth = 8, .max_files = 4, .max_buffers = 4});
  EXPECT_EQ(open_descriptors(), descriptors);
}

}  // namespace
}  // namespace metrale::io
