// SPDX-License-Identifier: Apache-2.0
// Random work over several streams against a model that does one thing after the other. Streams are ordered
// by events exactly where two operations touch the same buffer, so a backend that loses a wait gives other
// bytes.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include <metrale/base/error.h>

#include "conformance/gpu_backend_conformance.h"

namespace metrale::gpu {
namespace {

namespace kernels = testing_kernels;

constexpr std::size_t kStreams = 4;
constexpr std::size_t kBuffers = 6;
constexpr std::size_t kWords = 64;
constexpr std::size_t kBytes = kWords * sizeof(std::uint64_t);

using Image = std::array<std::uint64_t, kWords>;

enum class OpKind : std::uint8_t { kFill, kCopy, kRows, kUpload, kAppend };

// Writes to buffer `to`; a copy also reads buffer `from`.
struct Op {
  OpKind kind = OpKind::kFill;
  std::size_t to = 0;
  std::size_t from = 0;
  std::size_t word = 0;
  std::size_t count = 1;
  std::uint64_t number = 0;
};

// What the device should hold, changed in program order.
class Model {
 public:
  void apply(const Op& op) {
    Image& to = images_[op.to];
    const Image& from = images_[op.from];
    switch (op.kind) {
      case OpKind::kFill:
        std::memset(&to[op.word], static_cast<int>(op.number % 256), op.count * sizeof(std::uint64_t));
        break;
      case OpKind::kCopy:
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(op.word), op.count, to.begin());
        break;
      case OpKind::kRows:
        for (std::size_t row = 0; row < 4; ++row) to[row * 16] = from[row * 8];
        break;
      case OpKind::kUpload:
        to[op.word] = op.number;
        break;
      case OpKind::kAppend:
        to[op.word] = to[op.word] * 31 + op.number;
        break;
    }
  }
  [[nodiscard]] Image& image(std::size_t buffer) { return images_[buffer]; }

 private:
  std::array<Image, kBuffers> images_{};
};

// Gives each stream exactly the waits that it needs.
class Ordering {
 public:
  Ordering(GpuBackend& gpu, const std::vector<Stream>& streams) : gpu_(gpu), streams_(streams) {}

  void before_read(std::size_t stream, std::size_t buffer) { see(stream, last_write_[buffer]); }
  void before_write(std::size_t stream, std::size_t buffer) {
    see(stream, last_write_[buffer]);
    for (const Point& read : reads_[buffer]) see(stream, read);
  }
  void did_read(std::size_t stream, std::size_t buffer) { reads_[buffer].push_back({stream, next(stream)}); }
  void did_write(std::size_t stream, std::size_t buffer) {
    last_write_[buffer] = {stream, next(stream)};
    reads_[buffer].clear();
  }

 private:
  struct Point {
    std::size_t stream = 0;
    std::uint64_t index = 0;
  };

  std::uint64_t next(std::size_t stream) { return ++seen_[stream][stream]; }

  void see(std::size_t stream, const Point& point) {
    if (seen_[stream][point.stream] >= point.index) return;
    const Event event = make_event(gpu_);
    gpu_.record_event(event.ref(), streams_[point.stream].ref());
    gpu_.stream_wait_event(streams_[stream].ref(), event.ref());
    for (std::size_t i = 0; i < kStreams; ++i) {
      seen_[stream][i] = std::max(seen_[stream][i], seen_[point.stream][i]);
    }
  }

  GpuBackend& gpu_;
  const std::vector<Stream>& streams_;
  std::array<std::array<std::uint64_t, kStreams>, kStreams> seen_{};
  std::array<Point, kBuffers> last_write_{};
  std::array<std::vector<Point>, kBuffers> reads_;
};

class RandomRun {
 public:
  RandomRun(GpuBackend& gpu, std::uint64_t seed)
      : gpu_(gpu), has_kernels_(gpu.capabilities().runs_kernels), random_(seed) {
    for (std::size_t i = 0; i < kStreams; ++i) streams_.push_back(make_stream(gpu));
    for (std::size_t i = 0; i < kBuffers; ++i) {
      buffers_.emplace_back(gpu, kBytes);
      gpu.memset_blocking(buffers_.back().ptr(), 0, kBytes);
    }
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      const std::size_t stream = draw(kStreams);
      switch (draw(12)) {
        case 0:
          check_one_buffer(stream);
          break;
        case 1:
          gpu_.synchronize(streams_[stream].ref());
          break;
        case 2:
          if (gpu_.capabilities().graphs) replay_a_graph(stream);
          break;
        case 3:
          replace_a_buffer();
          break;
        default:
          enqueue_in_order(stream, random_op());
      }
    }
    for (std::size_t buffer = 0; buffer < kBuffers; ++buffer) {
      // Everything has been waited for only once every stream has.
      for (const Stream& stream : streams_) gpu_.synchronize(stream.ref());
      Image found{};
      gpu_.copy_d2h_blocking(std::as_writable_bytes(std::span(found)), buffers_[buffer].ptr());
      EXPECT_EQ(found, model_.image(buffer)) << "buffer " << buffer;
    }
  }

 private:
  std::size_t draw(std::size_t below) { return random_() % below; }

  Op random_op() {
    Op op{.kind = static_cast<OpKind>(draw(has_kernels_ ? 5 : 4)),
          .to = draw(kBuffers),
          .from = draw(kBuffers - 1),
          .word = draw(kWords / 2),
          .count = 1 + draw(kWords / 2),
          .number = random_()};
    if (op.from >= op.to) ++op.from;
    return op;
  }

  [[nodiscard]] static bool reads_another(const Op& op) {
    return op.kind == OpKind::kCopy || op.kind == OpKind::kRows;
  }

  void enqueue(const Op& op, StreamRef stream) {
    const DevicePtr to = buffers_[op.to].ptr();
    const DevicePtr from = buffers_[op.from].ptr();
    const DevicePtr to_word = to.offset(op.word * sizeof(std::uint64_t));
    const std::size_t bytes = op.count * sizeof(std::uint64_t);
    switch (op.kind) {
      case OpKind::kFill:
        gpu_.memset_async(to_word, static_cast<std::uint8_t>(op.number), bytes, stream);
        break;
      case OpKind::kCopy:
        gpu_.copy_d2d_async(to, from.offset(op.word * sizeof(std::uint64_t)), bytes, stream);
        break;
      case OpKind::kRows:
        gpu_.copy_d2d_2d_async(to, 128, from, 64, 8, 4, stream);
        break;
      case OpKind::kUpload:
        if (gpu_.stream_is_capturing(stream)) {
          retained_.push_back(std::make_unique<std::uint64_t>(op.number));
          gpu_.copy_h2d_async_retained(to_word, std::as_bytes(std::span(retained_.back().get(), 1)), stream);
        } else {
          gpu_.copy_h2d_async(to_word, std::as_bytes(std::span(&op.number, 1)), stream);
        }
        break;
      case OpKind::kAppend:
        launch(gpu_, kernels::kAppend, stream,
               kernels::AppendArgs{.value = to_word.address(), .number = op.number});
        break;
    }
  }

  void enqueue_in_order(std::size_t stream, const Op& op) {
    ordering_.before_write(stream, op.to);
    if (reads_another(op)) ordering_.before_read(stream, op.from);
    enqueue(op, streams_[stream].ref());
    ordering_.did_write(stream, op.to);
    if (reads_another(op)) ordering_.did_read(stream, op.from);
    model_.apply(op);
  }

  void replay_a_graph(std::size_t stream) {
    std::vector<Op> ops(1 + draw(5));
    for (Op& op : ops) op = random_op();
    CaptureScope capture(gpu_, streams_[stream].ref());
    for (const Op& op : ops) enqueue(op, streams_[stream].ref());
    // Kept: destroying it would wait for its replays.
    graphs_.push_back(capture.finish());

    for (const Op& op : ops) {
      ordering_.before_write(stream, op.to);
      if (reads_another(op)) ordering_.before_read(stream, op.from);
    }
    for (int replay = 0; replay < 2; ++replay) {
      gpu_.launch_graph(graphs_.back().ref(), streams_[stream].ref());
      for (const Op& op : ops) model_.apply(op);
    }
    for (const Op& op : ops) {
      if (reads_another(op)) ordering_.did_read(stream, op.from);
    }
    for (const Op& op : ops) ordering_.did_write(stream, op.to);
  }

  void check_one_buffer(std::size_t stream) {
    const std::size_t buffer = draw(kBuffers);
    Image found{};
    ordering_.before_read(stream, buffer);
    gpu_.copy_d2h_async(std::as_writable_bytes(std::span(found)), buffers_[buffer].ptr(),
                        streams_[stream].ref());
    gpu_.synchronize(streams_[stream].ref());
    EXPECT_EQ(found, model_.image(buffer)) << "buffer " << buffer;
  }

  void replace_a_buffer() {
    const std::size_t buffer = draw(kBuffers);
    for (const Stream& stream : streams_) gpu_.synchronize(stream.ref());
    buffers_[buffer] = DeviceBuffer(gpu_, kBytes);
    gpu_.memset_blocking(buffers_[buffer].ptr(), 0, kBytes);
    model_.image(buffer) = {};
  }

  GpuBackend& gpu_;
  const bool has_kernels_;
  std::mt19937_64 random_;
  std::vector<Stream> streams_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::unique_ptr<std::uint64_t>> retained_;
  std::vector<Graph> graphs_;
  Model model_;
  Ordering ordering_{gpu_, streams_};
};

TEST_P(GpuBackendConformance, RandomWorkGivesWhatDoingItInOrderGives) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomRun(gpu_, seed).run(150);
    if (HasFailure()) return;
  }
}

// ---- several host threads

constexpr std::size_t kThreads = 4;

void on_threads(const std::function<void(std::size_t)>& body) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(GpuBackendConformance, ThreadsShareAStreamAndEachKeepsItsOrder) {
  if (!runs_kernels()) GTEST_SKIP();
  constexpr std::uint64_t kAppends = 500;
  const Stream stream = make_stream(gpu_);
  std::vector<DeviceBuffer> words;
  for (std::size_t i = 0; i < kThreads; ++i) words.push_back(upload<std::uint64_t>({0}));
  std::uint64_t expected = 0;
  for (std::uint64_t i = 0; i < kAppends; ++i) expected = expected * 31 + i;

  on_threads([&](std::size_t thread) {
    for (std::uint64_t i = 0; i < kAppends; ++i) append(stream.ref(), words[thread], i);
    gpu_.synchronize(stream.ref());
    EXPECT_EQ(read<std::uint64_t>(words[thread].ptr(), 1)[0], expected);
  });
}

TEST_P(GpuBackendConformance, ThreadsMakeAndEndTheirOwnThings) {
  on_threads([&](std::size_t thread) {
    for (int round = 0; round < 50; ++round) {
      const DeviceBuffer buffer(gpu_, 1'000 + thread);
      const PinnedBuffer pinned(gpu_, 100);
      const Stream stream = make_stream(gpu_);
      const Event event = make_event(gpu_);
      const auto value = static_cast<std::uint8_t>(thread + 1);
      gpu_.memset_async(buffer.ptr(), value, 1'000, stream.ref());
      gpu_.record_event(event.ref(), stream.ref());
      gpu_.event_synchronize(event.ref());
      gpu_.copy_d2h_on_stream(pinned.span(), buffer.ptr(), stream.ref());
      EXPECT_EQ(pinned.data()[99], std::byte{value});
    }
  });
  EXPECT_EQ(gpu_.live_alloc_count(), 0U);
}

TEST_P(GpuBackendConformance, ThreadsCaptureAndReplaySideBySide) {
  if (!gpu_.capabilities().graphs) GTEST_SKIP();
  on_threads([&](std::size_t thread) {
    const Stream stream = make_stream(gpu_);
    const DeviceBuffer from(gpu_, 64);
    const DeviceBuffer to(gpu_, 64);
    CaptureScope capture(gpu_, stream.ref());
    gpu_.copy_d2d_async(to.ptr(), from.ptr(), 64, stream.ref());
    const Graph graph = capture.finish();
    for (int round = 0; round < 50; ++round) {
      const auto value = static_cast<std::uint8_t>(thread * 50 + static_cast<std::size_t>(round));
      gpu_.memset_async(from.ptr(), value, 64, stream.ref());
      gpu_.launch_graph(graph.ref(), stream.ref());
      gpu_.synchronize(stream.ref());
      EXPECT_EQ(read<std::uint8_t>(to.ptr(), 64)[63], value);
    }
  });
}

}  // namespace
}  // namespace metrale::gpu
