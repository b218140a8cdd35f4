// SPDX-License-Identifier: Apache-2.0
// Pages that are there before anybody writes to them.
#include "weights/page_maker.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <support/no_threads.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include <metrale/base/checked.h>

#include "weights/load_chunks.h"
#include "weights/loader_support.h"

namespace metrale::weights {
namespace {

#ifdef __has_feature
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#elif defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

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
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  std::size_t bytes_;
  void* at_;
};

std::size_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

class PageMakerTest : public testing::Test {
 protected:
  void SetUp() override {
    const Fresh memory(kPage);
    if (::madvise(memory.span().data(), kPage, MADV_POPULATE_WRITE) != 0) {
      GTEST_SKIP() << "this system makes no pages when asked to";
    }
  }
  PageMaker maker;
};

TEST_F(PageMakerTest, MakesThePagesOfEveryRangeAndOfNothingElse) {
  const Fresh memory(40 * kPage);
  const auto span = memory.span();
  maker.start({span.subspan(20 * kPage + 100, 1), span.subspan(3 * kPage + 4000, 200), span.subspan(7, 0),
               span.subspan(30 * kPage, 5 * kPage)});
  EXPECT_TRUE(memory.gets(5, 30, 5));
  EXPECT_EQ(memory.pages(20, 1), 1U) << "within a page";
  EXPECT_EQ(memory.pages(3, 2), 2U) << "across the border of two";
  EXPECT_EQ(memory.pages(), 8U);
}

TEST_F(PageMakerTest, WhoWritesThereMakesNone) {
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer makes pages of its own for every write";
  const Fresh memory(2000 * kPage);
  maker.start({memory.span()});
  ASSERT_TRUE(memory.gets(2000));
  rusage before{};
  rusage after{};
  ASSERT_EQ(::getrusage(RUSAGE_THREAD, &before), 0);
  for (std::size_t i = 0; i < 2000; ++i) memory.span()[i * kPage] = std::byte{1};
  ASSERT_EQ(::getrusage(RUSAGE_THREAD, &after), 0);
  EXPECT_LT(after.ru_minflt - before.ru_minflt, 1000);
}

TEST_F(PageMakerTest, LeavesWhatMemoryHolds) {
  const Fresh memory(std::size_t{16} << 20);
  const auto span = memory.span();
  for (std::size_t i = 0; i < span.size(); i += 3 * kPage) span[i + 7] = std::byte{42};
  maker.start({span});
  for (std::size_t i = kPage; i < span.size(); i += 3 * kPage) span[i + 8] = std::byte{43};
  EXPECT_TRUE(memory.gets(span.size() / kPage));
  for (std::size_t i = 0; i < span.size(); i += kPage) {
    const std::size_t third = i / kPage % 3;
    ASSERT_EQ(span[i + 7], third == 0 ? std::byte{42} : std::byte{0}) << i;
    ASSERT_EQ(span[i + 8], third == 1 ? std::byte{43} : std::byte{0}) << i;
  }
}

TEST_F(PageMakerTest, EndsWhereNothingMayBeWritten) {
  const Fresh memory(3 * kPage);
  const auto span = memory.span();
  ASSERT_EQ(::mprotect(span.data() + kPage, kPage, PROT_READ), 0);
  const std::size_t before = threads();
  maker.start({span.subspan(kPage, kPage), span.first(kPage)});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (threads() > before && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(threads(), before);
  EXPECT_EQ(memory.pages(), 0U);
}

TEST_F(PageMakerTest, StopsWhenItIsToldTo) {
  constexpr std::size_t kBytes = std::size_t{512} << 20;
  const Fresh memory(kBytes);
  maker.start({memory.span()});
  maker.stop();
  const std::size_t made = memory.pages();
  EXPECT_LT(made, kBytes / kPage);
  EXPECT_EQ(memory.pages(), made);
}

TEST_F(PageMakerTest, DoesWithoutAThread) {
  const Fresh memory(8 * kPage);
  const auto is_left_alone = [&] {
    maker.start({memory.span()});
    return memory.pages() == 0;
  };
  EXPECT_EXIT(::_exit(run_without_threads(is_left_alone)), testing::ExitedWithCode(0), "");
}

// Every tensor in host memory of its own, written when its pages are there.
class FreshSink final : public PieceSink {
 public:
  explicit FreshSink(const std::vector<TensorLoad>& loads) : loads_(loads), memory_(total(loads)) {}
  [[nodiscard]] const Fresh& memory() const { return memory_; }
  [[nodiscard]] bool has_waited_in_vain() const { return has_waited_in_vain_; }
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
    const auto first = static_cast<std::size_t>(to - memory_.span().data());
    const std::size_t pages = (first + piece.bytes.size() - 1) / kPage - first / kPage + 1;
    has_waited_in_vain_ = has_waited_in_vain_ || !memory_.gets(pages, first / kPage, pages);
    std::memcpy(to, piece.bytes.data(), piece.bytes.size());
  }

  const std::vector<TensorLoad>& loads_;
  Fresh memory_;
  bool has_waited_in_vain_ = false;
};

TEST_F(PageMakerTest, ALoadDoesNotMakeThePagesThatItWrites) {
  const RandomModel model(40);
  const auto directory = ModelDirectory::open(model.path());
  const auto loads = load_all(directory);
  for (const LoadPath path : {LoadPath::kDirect, LoadPath::kMap}) {
    FreshSink sink(loads);
    (void)load_tensors(directory, loads, sink, small_chunks(path));
    for (std::size_t i = 0; i < loads.size(); ++i) {
      const auto got = sink.memory().span().subspan(sink.offset(i), loads[i].size_bytes);
      ASSERT_EQ(Bytes(got.begin(), got.end()), model.bytes(loads[i].tensor.info().name));
    }
    EXPECT_FALSE(sink.has_waited_in_vain());
  }
}

TEST(MemoryOfChunks, NeighboursAreOneRange) {
  const RandomModel model(41);
  const auto directory = ModelDirectory::open(model.path());
  auto loads = load_all(directory);
  std::sort(loads.begin(), loads.end(), [](const TensorLoad& a, const TensorLoad& b) {
    return std::pair(a.tensor.file_index(), a.tensor.info().offset_bytes) <
           std::pair(b.tensor.file_index(), b.tensor.info().offset_bytes);
  });
  FreshSink sink(loads);
  const LoadList list = order_loads(directory, loads, sink);
  const auto ranges = memory_of(list, cut_chunks(loads, list, {16'384, 4096}, 1));
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_EQ(ranges[0].data(), list.order.front().memory);
  const LoadList::Entry& last = list.order.back();
  EXPECT_EQ(ranges[0].data() + ranges[0].size(), last.memory + (last.end - last.begin));
}

TEST(MemoryOfChunks, WhatIsAPageApartOrHasNoPlaceIsNotPartOfIt) {
  const Fresh memory(8 * kPage);
  std::byte* const base = memory.span().data();
  LoadList list;
  list.order = {{.load = 0, .begin = 0, .end = kPage, .memory = base},
                {.load = 1, .begin = kPage, .end = kPage + 1, .memory = base + 2 * kPage},
                {.load = 2, .begin = kPage + 1, .end = kPage + 9},
                {.load = 3, .begin = kPage + 9, .end = kPage + 10, .memory = base + 3 * kPage},
                {.load = 4, .begin = kPage + 10, .end = kPage + 12, .memory = base + kPage}};
  const std::vector<Chunk> chunks{{.begin = 0, .end = 100}, {.begin = 100, .end = kPage + 12}};
  const auto ranges = memory_of(list, chunks);
  ASSERT_EQ(ranges.size(), 3U);
  EXPECT_EQ(ranges[0].data(), base);
  EXPECT_EQ(ranges[0].size(), kPage);
  EXPECT_EQ(ranges[1].data(), base + 2 * kPage);
  EXPECT_EQ(ranges[1].size(), kPage + 1);
  EXPECT_EQ(ranges[2].data(), base + kPage);
}

}  // namespace
}  // namespace metrale::weights
