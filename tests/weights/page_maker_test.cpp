// SPDX-License-Identifier: Apache-2.0
// Pages that are there before anybody writes to them.
#include "weights/page_maker.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <support/no_threads.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include <metrale/base/checked.h>

#include "weights/load_chunks.h"
#include "weights/loader_support.h"

namespace metrale::weights {
namespace {

constexpr std::size_t kPage = 4096;

// Memory without pages.
class Fresh {
 public:
  explicit Fresh(std::size_t bytes)
      : bytes_(std::max(kPage, round_up(bytes, kPage))),
        at_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (at_ == MAP_FAILED) throw std::bad_alloc();
    ::madvise(at_, bytes_, MADV_NOHUGEPAGE);
  }
  ~Fresh() { ::munmap(at_, bytes_); }
  Fresh(const Fresh&) = delete;
  Fresh& operator=(const Fresh&) = delete;

  [[nodiscard]] std::span<std::byte> span() const { return {static_cast<std::byte*>(at_), bytes_}; }
  [[nodiscard]] std::size_t pages(std::size_t first = 0, std::size_t count = SIZE_MAX) const {
    std::vector<unsigned char> is_there(bytes_ / kPage);
    if (::mincore(at_, bytes_, is_there.data()) != 0) return 0;
    std::size_t there = 0;
    for (std::size_t i = first; i < is_there.size() && i - first < count; ++i) there += is_there[i] & 1U;
    return there;
  }
  // Whether so many of those pages are there in time.
  [[nodiscard]] bool gets(std::size_t wanted, std::size_t first = 0, std::size_t count = SIZE_MAX) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (pages(first, count) < wanted) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  std::size_t bytes_;
  void* at_;
};

TEST(PageMaker, MakesThePagesOfEveryRangeAndOfNothingElse) {
  const Fresh memory(40 * kPage);
  const auto span = memory.span();
  const PageMaker maker({span.subspan(20 * kPage + 100, 1),
                         span.subspan(3 * kPage + 4000, 200),
                         {},
                         span.subspan(30 * kPage, 5 * kPage)});
  EXPECT_TRUE(memory.gets(5, 30, 5));
  EXPECT_EQ(memory.pages(20, 1), 1U) << "within a page";
  EXPECT_EQ(memory.pages(3, 2), 2U) << "across the border of two";
  EXPECT_EQ(memory.pages(), 8U);
}

TEST(PageMaker, LeavesWhatMemoryHolds) {
  const Fresh memory(std::size_t{16} << 20);
  const auto span = memory.span();
  for (std::size_t i = 0; i < span.size(); i += 3 * kPage) span[i + 7] = std::byte{42};
  const PageMaker maker({span});
  for (std::size_t i = kPage; i < span.size(); i += 3 * kPage) span[i + 8] = std::byte{43};
  EXPECT_TRUE(memory.gets(span.size() / kPage));
  for (std::size_t i = 0; i < span.size(); i += kPage) {
    const std::size_t third = i / kPage % 3;
    ASSERT_EQ(span[i + 7], third == 0 ? std::byte{42} : std::byte{0}) << i;
    ASSERT_EQ(span[i + 8], third == 1 ? std::byte{43} : std::byte{0}) << i;
  }
}

TEST(PageMaker, StopsWhereNothingMayBeWritten) {
  const Fresh memory(3 * kPage);
  const auto span = memory.span();
  ASSERT_EQ(::mprotect(span.data() + kPage, kPage, PROT_READ), 0);
  const PageMaker maker({span.first(kPage), span.subspan(kPage)});
  EXPECT_TRUE(memory.gets(1, 0, 1));
}

TEST(PageMaker, DoesWithoutAThread) {
  const Fresh memory(8 * kPage);
  const auto is_left_alone = [&] {
    const PageMaker maker({memory.span()});
    return memory.pages() == 0;
  };
  EXPECT_EXIT(::_exit(run_without_threads(is_left_alone)), testing::ExitedWithCode(0), "");
}

// Every tensor in host memory of its own.
class FreshSink final : public PieceSink {
 public:
  explicit FreshSink(const std::vector<TensorLoad>& loads) : loads_(loads), memory_(total(loads)) {}
  [[nodiscard]] const Fresh& memory() const { return memory_; }
  [[nodiscard]] std::size_t offset(std::size_t load) const { return total(std::span(loads_).first(load)); }

 private:
  [[nodiscard]] static std::size_t total(std::span<const TensorLoad> loads) {
    std::size_t bytes = 0;
    for (const TensorLoad& load : loads) bytes += round_up(load.size_bytes, std::uint64_t{256});
    return bytes;
  }
  [[nodiscard]] std::byte* do_place(std::size_t load, std::uint64_t) const override {
    return memory_.span().data() + offset(load);
  }
  void do_take(const Piece& piece) override {
    std::byte* const to = memory_.span().data() + offset(piece.load) + piece.offset_bytes;
    if (piece.bytes.empty() || to == piece.bytes.data()) return;
    std::memcpy(to, piece.bytes.data(), piece.bytes.size());
  }

  const std::vector<TensorLoad>& loads_;
  Fresh memory_;
};

TEST(PageMaker, ALoadHasThePagesOfHostMemoryBeforeItHasTheBytes) {
  const RandomModel model(40);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  for (const LoadPath path : {LoadPath::kDirect, LoadPath::kBuffered}) {
    FreshSink sink(loads);
    const Fresh& memory = sink.memory();
    LoadOptions options = small_chunks(path);
    options.make_engine = [&](const io::IoOptions& io) {
      EXPECT_TRUE(memory.gets(memory.span().size() / kPage));
      return io::make_io_engine(io);
    };
    (void)load_tensors(directory, loads, sink, options);
    for (std::size_t i = 0; i < loads.size(); ++i) {
      const auto got = memory.span().subspan(sink.offset(i), loads[i].size_bytes);
      ASSERT_EQ(Bytes(got.begin(), got.end()), model.bytes(loads[i].tensor.info().name));
    }
  }
}

TEST(PageMaker, MemoryComesInTheOrderOfTheChunks) {
  const RandomModel model(41);
  const auto directory = ModelDirectory::open(model.path());
  auto loads = load_all(directory);
  std::shuffle(loads.begin(), loads.end(), std::mt19937_64(41));
  FreshSink sink(loads);
  const LoadList list = order_loads(directory, loads, sink);
  const auto chunks = cut_chunks(loads, list, {16'384, 4096}, 2);
  const auto ranges = memory_of(list, chunks);
  std::size_t at = 0;
  std::uint64_t bytes = 0;
  for (const Chunk& chunk : chunks) {
    for_each_load(list, chunk, [&](const LoadList::Entry& entry, std::uint64_t begin, std::uint64_t end) {
      const std::byte* const first = entry.memory + (begin - entry.begin);
      while (at < ranges.size() &&
             (first < ranges[at].data() || first >= ranges[at].data() + ranges[at].size())) {
        ++at;
      }
      ASSERT_LT(at, ranges.size());
      EXPECT_LE(first + (end - begin), ranges[at].data() + ranges[at].size());
      bytes += end - begin;
    });
  }
  EXPECT_EQ(at, ranges.size() - 1);
  EXPECT_EQ(bytes, list.total_bytes);
  EXPECT_LT(ranges.size(), 2 * chunks.size()) << "neighbours are one";
}

}  // namespace
}  // namespace metrale::weights
