// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/checked.h>
#include <metrale/base/cpu_features.h>
#include <metrale/base/error.h>
#include <metrale/kernels/linear.h>

#include "kernels/host_args.h"
#include "kernels/linear/args.h"
#include "kernels/linear/onednn.h"
#include "kernels/linear/plan.h"
#include "kernels/linear/results.h"
#include "kernels/register.h"

namespace metrale::kernels {
namespace {

using linear::kChunkBytes;
using linear::Kernels;
using linear::kLanes;
using linear::kPanelOuts;
using quant::ElementType;

constexpr std::string_view kName = "linear::linear";
constexpr std::size_t kRowBlock = 512;                        // rows that are taken at a time, or fewer:
constexpr std::size_t kRowBlockBytes = std::size_t{4} << 20;  // so much of a cache they may fill
constexpr std::size_t kStreamRows = 32;                       // so few wait for the weights
constexpr std::size_t kStretchBytes = std::size_t{1} << 20;   // of weights
constexpr std::size_t kAliasBytes =
    4096;  // rows at multiples of it from each other share few sets of a cache

// Memory of one thread, kept for the next call.
float* row_scratch(std::size_t count) {
  static thread_local AlignedBuffer buffer;
  if (buffer.size_bytes() < count * sizeof(float)) buffer = AlignedBuffer(count * sizeof(float), 64);
  return reinterpret_cast<float*>(buffer.data());
}

// The panels of a call in stretches of `length`. With a fine end the stretches are an eighth shorter, and
// what that leaves follows in pieces of a sixteenth: one thread is always a little faster, and takes more of
// them.
class Stretches {
 public:
  Stretches(std::size_t panels, std::size_t length, bool fine_end)
      : panels_(panels), long_(length), short_(length) {
    const std::size_t piece = std::max<std::size_t>(length / 16 / kStep * kStep, kStep);
    if (fine_end) short_ = piece;
    if (fine_end && length > 3 * piece) long_ = length - 2 * piece;
    long_count_ = panels / length;
  }
  [[nodiscard]] std::size_t count() const {
    return long_count_ + ceil_div(panels_ - long_count_ * long_, short_);
  }
  // That of stretch count() is the end.
  [[nodiscard]] std::size_t begin(std::size_t stretch) const {
    const std::size_t longs = std::min(stretch, long_count_);
    return std::min(longs * long_ + (stretch - longs) * short_, panels_);
  }

 private:
  static constexpr std::size_t kStep = 4;  // panels: a cache line of FP32 results
  std::size_t panels_;
  std::size_t long_;
  std::size_t short_;
  std::size_t long_count_ = 0;
};

const Kernels& choose(const LinearArgs& args, bool pairs) {
  if (pairs) return linear::avx512_bf16_pair_kernels();
  const auto& set = cpu_isa() == CpuIsa::kAvx2 ? linear::avx2_kernels() : linear::avx512_kernels();
  switch (args.weight_type) {
    case ElementType::kF32:
      return set.f32;
    case ElementType::kBf16:
      return set.bf16;
    case ElementType::kF16:
      return set.f16;
  }
  return set.f32;
}

// One launch: the activations in the tiles' order, and the loops over rows and outputs.
class Launch {
 public:
  Launch(ThreadPool& pool, const LinearArgs& args)
      : pool_(pool),
        args_(args),
        pairs_(cpu_isa() == CpuIsa::kAvx512Bf16 && args.in_type == ElementType::kBf16 &&
               args.weight_type == ElementType::kBf16),
        kernels_(choose(args, pairs_)),
        weight_row_bytes_(std::size_t{args.in_features} * element_bytes(args.weight_type)),
        in_row_bytes_(std::size_t{args.in_stride} * element_bytes(args.in_type)),
        out_row_bytes_(std::size_t{args.out_stride} * element_bytes(args.out_type)),
        panels_(ceil_div(std::size_t{args.out_features}, kPanelOuts)) {
    const std::size_t chunks = ceil_div(weight_row_bytes_, kChunkBytes);
    // Rows at an odd number of cache lines from each other spread over the sets of the caches.
    x_stride_ = chunks * kernels_.steps * kLanes;
    if (x_stride_ / kLanes % 2 == 0) x_stride_ += kLanes;
    // A row of whole chunks in the tiles' order can be read where it lies.
    in_place_ = (pairs_ || (args.in_type == ElementType::kF32 && args.weight_type == ElementType::kF32)) &&
                weight_row_bytes_ % kChunkBytes == 0 && in_row_bytes_ % kAliasBytes != 0 &&
                args.in % sizeof(float) == 0 && in_row_bytes_ % sizeof(float) == 0;
    if (in_place_) x_stride_ = in_row_bytes_ / sizeof(float);
  }

  void run(std::size_t rows) {
    const std::size_t fits = std::max(kernels_.most_rows, kRowBlockBytes / (x_stride_ * sizeof(float)));
    const std::size_t block = std::min(kRowBlock, fits);
    for (std::size_t row = 0; row < rows; row += block) {
      rows_ = std::min(block, rows - row);
      out_ = host_ptr<std::byte>(args_.out) + row * out_row_bytes_;
      take_rows(host_ptr<const std::byte>(args_.in) + row * in_row_bytes_);
      run_block();
    }
  }

 private:
  void take_rows(const std::byte* in) {
    if (in_place_) {
      x_ = reinterpret_cast<const float*>(in);
      return;
    }
    float* const x = row_scratch(rows_ * x_stride_);
    pool_.parallel_for(rows_, 32, [&](std::size_t begin, std::size_t end) {
      for (std::size_t row = begin; row < end; ++row) take_row(in + row * in_row_bytes_, x + row * x_stride_);
    });
    x_ = x;
  }

  void take_row(const std::byte* from, float* to) const {
    if (!pairs_) return linear::spread_row(args_.in_type, from, args_.in_features, kernels_.steps, to);
    std::memcpy(to, from, weight_row_bytes_);
    const std::size_t whole = round_up(weight_row_bytes_, kChunkBytes);
    std::memset(reinterpret_cast<std::byte*>(to) + weight_row_bytes_, 0, whole - weight_row_bytes_);
  }

  // Stretches of panels, where these are few times parts of the rows.
  void run_block() {
    const std::size_t threads = pool_.size();
    std::size_t length = ceil_div(panels_, threads);
    // Where memory sets the pace stretches are long: where short ones alternate, every thread's prefetcher
    // runs on into what another one reads. Elsewhere they are short, so that the threads end together.
    if (rows_ > kStreamRows) length = ceil_div(length, std::size_t{16});
    length = std::min(length, kStretchBytes / (kPanelOuts * weight_row_bytes_));
    length = round_up(std::max<std::size_t>(length, 1), std::size_t{4});  // a cache line of FP32 results
    const Stretches stretches(panels_, length, rows_ <= kStreamRows);
    const std::size_t tiles = ceil_div(rows_, kernels_.most_rows);
    const std::size_t parts =
        std::clamp<std::size_t>(4 * threads / stretches.count(), 1, ceil_div(tiles, std::size_t{4}));
    pool_.parallel_for(stretches.count() * parts, 1, [&](std::size_t task, std::size_t) {
      const std::size_t stretch = task / parts;
      const std::size_t part = task % parts;
      run_panels(stretches.begin(stretch), stretches.begin(stretch + 1), rows_ * part / parts,
                 rows_ * (part + 1) / parts);
    });
  }

  void run_panels(std::size_t begin, std::size_t end, std::size_t row_begin, std::size_t row_end) const {
    const std::size_t rows = row_end - row_begin;
    const std::size_t tiles = ceil_div(rows, kernels_.most_rows);
    alignas(64) float sums[linear::kMostRows * kPanelOuts * 4];
    alignas(64) std::byte tail[kPanelOuts * kChunkBytes];
    for (std::size_t panel = begin; panel < end; ++panel) {
      linear::Tile tile = tile_of(panel, tail);
      tile.sums = sums;
      for (std::size_t i = 0; i < tiles; ++i) {
        const std::size_t row = row_begin + rows * i / tiles;
        const std::size_t height = row_begin + rows * (i + 1) / tiles - row;
        tile.x = x_ + row * x_stride_;
        (i == 0 ? kernels_.from_memory : kernels_.from_cache)[height - 1](tile);
        store_results(panel * kPanelOuts, row, height, sums);
      }
    }
  }

  [[nodiscard]] linear::Tile tile_of(std::size_t panel, std::byte* tail) const {
    linear::Tile tile{};
    tile.chunks = weight_row_bytes_ / kChunkBytes;
    tile.x_stride = x_stride_;
    const std::size_t whole = tile.chunks * kChunkBytes;
    const std::size_t rest = weight_row_bytes_ - whole;
    if (rest != 0) tile.tail = tail;
    for (std::size_t c = 0; c < kPanelOuts; ++c) {
      // Outputs past the last repeat it; their results are not stored.
      const std::size_t out = std::min<std::size_t>(panel * kPanelOuts + c, args_.out_features - 1);
      tile.weights[c] = host_ptr<const std::byte>(args_.weight) + out * weight_row_bytes_;
      if (rest == 0) continue;
      std::memcpy(tail + c * kChunkBytes, tile.weights[c] + whole, rest);
      std::memset(tail + c * kChunkBytes + rest, 0, kChunkBytes - rest);
    }
    return tile;
  }

  void store_results(std::size_t out, std::size_t row, std::size_t height, const float* sums) const {
    const std::size_t count = std::min<std::size_t>(kPanelOuts, args_.out_features - out);
    const auto* bias = host_ptr<const std::byte>(args_.bias);
    const __m128 offset =
        bias == nullptr
            ? _mm_setzero_ps()
            : linear::load_four(args_.weight_type, bias + out * element_bytes(args_.weight_type), count);
    std::byte* to = out_ + row * out_row_bytes_ + out * element_bytes(args_.out_type);
    for (std::size_t r = 0; r < height; ++r, to += out_row_bytes_, sums += kPanelOuts * 4) {
      __m128 value = linear::sum_lanes(sums);
      if (bias != nullptr) value = _mm_add_ps(value, offset);
      linear::store_four(args_.out_type, value, count, to);
    }
  }

  ThreadPool& pool_;
  const LinearArgs& args_;
  bool pairs_;
  const Kernels& kernels_;
  std::size_t weight_row_bytes_;
  std::size_t in_row_bytes_;
  std::size_t out_row_bytes_;
  std::size_t panels_;
  bool in_place_ = false;
  std::size_t x_stride_ = 0;  // 32-bit values
  const float* x_ = nullptr;
  std::byte* out_ = nullptr;
  std::size_t rows_ = 0;  // of this block
};

void linear_body(ThreadPool& pool, const LinearArgs& args) {
  check_linear(kName, args);
  const std::uint32_t rows = read_rows(kName, args.rows, args.max_rows);
  if (rows == 0 || args.out_features == 0) return;
  Launch(pool, args).run(rows);
}

// The same by oneDNN, each thread on outputs of its own, where there are enough rows to be worth its
// overhead.
void linear_fast_body(ThreadPool& pool, const LinearArgs& args) {
  check_linear(kName, args);
  const std::uint32_t rows = read_rows(kName, args.rows, args.max_rows);
  const bool use_onednn = rows >= kLinearFastRows && args.out_features != 0 &&
                          linear::onednn_has(args.in_type, args.weight_type, args.out_type);
  if (!use_onednn) return linear_body(pool, args);
  const std::size_t weight_bytes = element_bytes(args.weight_type);
  const std::size_t grain = round_up(ceil_div<std::size_t>(args.out_features, pool.size()), std::size_t{64});
  pool.parallel_for(args.out_features, grain, [&](std::size_t begin, std::size_t end) {
    const auto* bias = host_ptr<const std::byte>(args.bias);
    linear::onednn_multiply(
        {.rows = rows,
         .ins = args.in_features,
         .outs = static_cast<std::int64_t>(end - begin),
         .in_stride = args.in_stride,
         .out_stride = args.out_stride,
         .type = args.in_type,
         .out_type = args.out_type,
         .in = host_ptr<const std::byte>(args.in),
         .weight = host_ptr<const std::byte>(args.weight) + begin * args.in_features * weight_bytes,
         .bias = bias == nullptr ? nullptr : bias + begin * weight_bytes,
         .out = host_ptr<std::byte>(args.out) + begin * element_bytes(args.out_type)});
  });
}

}  // namespace

void register_linear(gpu::CpuKernelTable& table) {
  table.add<linear_body>(kLinear);
  table.add<linear_fast_body>(kLinearFast);
}

}  // namespace metrale::kernels
