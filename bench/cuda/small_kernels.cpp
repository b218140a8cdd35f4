// SPDX-License-Identifier: Apache-2.0
// The kernels between the products at the sizes of Llama-3.1-8B: what moves little against an empty kernel of
// a graph (the cache may hold it, as in a step), the rest against a copy or a read.
#include <algorithm>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include <metrale/gpu/kernel.h>
#include <metrale/kernels/activation.h>
#include <metrale/kernels/embedding.h>
#include <metrale/kernels/kv_write.h>
#include <metrale/kernels/logits.h>
#include <metrale/kernels/norm.h>
#include <metrale/kernels/rope.h>

#include "cuda/cases.h"

namespace metrale::bench {
namespace {

using quant::ElementType;

constexpr std::uint32_t kHidden = 4096;
constexpr std::uint32_t kIntermediate = 14336;
constexpr std::uint32_t kQueryHeads = 32;
constexpr std::uint32_t kKvHeads = 8;
constexpr std::uint32_t kHeadDim = 128;
constexpr std::uint32_t kQkvWidth = (kQueryHeads + 2 * kKvHeads) * kHeadDim;
constexpr std::uint32_t kVocab = 128256;
constexpr std::uint32_t kBlockSize = 16;
constexpr std::uint64_t kColdBytes = 768 * kMiB;
constexpr std::uint64_t kMuchBytes = 8 * kMiB;

// One kernel for so many rows. Input number i of a case lies i * in_bytes into the noise, its result i *
// out_bytes into the room.
struct Case {
  const char* name;
  std::uint32_t rows;
  std::uint64_t in_bytes;
  std::uint64_t out_bytes;

  [[nodiscard]] std::size_t inputs() const {
    return std::clamp<std::uint64_t>(kColdBytes / (in_bytes + out_bytes), 2, 256);
  }
};

void measure(Bench& bench, const Case& c,
             const std::function<void(gpu::StreamRef, std::uint64_t in, std::uint64_t out)>& launch) {
  const std::string name = fmt::format("small {} rows {}", c.name, c.rows);
  bench.run(name, [&] {
    const double seconds = bench.device.seconds_each(c.inputs(), [&](gpu::StreamRef stream, std::size_t i) {
      launch(stream, bench.device.noise(i * c.in_bytes, c.in_bytes),
             bench.device.room(i * c.out_bytes, c.out_bytes));
    });
    const std::uint64_t bytes = c.in_bytes + c.out_bytes;
    if (bytes >= kMuchBytes) {
      c.out_bytes < bytes / 16 ? bench.add_read(name, bytes, seconds) : bench.add_copy(name, bytes, seconds);
      return;
    }
    bench.report.add(
        {.name = name,
         .metric = "time",
         .value = seconds * 1e6,
         .unit = "us",
         .bytes_moved = bytes,
         .share_of_limit = bench.limits.empty_seconds / seconds,
         .limit = fmt::format("an empty kernel of a graph, {:.2f} us", bench.limits.empty_seconds * 1e6)});
  });
}

void norm_and_activation(Bench& bench, std::uint32_t rows) {
  gpu::GpuBackend& gpu = bench.device.gpu();
  Arrays arrays(gpu);
  const std::uint64_t count = arrays.put(rows);
  const std::uint64_t weight = arrays.put(std::vector<float>(kHidden, 1.0F));
  measure(bench, {"rms_norm", rows, std::uint64_t{rows} * kHidden * 4, std::uint64_t{rows} * kHidden * 2},
          [&](gpu::StreamRef stream, std::uint64_t in, std::uint64_t out) {
            gpu::launch(gpu, kernels::kRmsNorm, stream,
                        {.rows = count,
                         .in = in,
                         .weight = weight,
                         .out = out,
                         .max_rows = rows,
                         .width = kHidden,
                         .in_stride = kHidden,
                         .out_stride = kHidden,
                         .in_type = ElementType::kF32,
                         .weight_type = ElementType::kF32,
                         .out_type = ElementType::kBf16,
                         .epsilon = 1e-5F});
          });
  measure(bench, {"add_rms_norm", rows, std::uint64_t{rows} * kHidden * 8, std::uint64_t{rows} * kHidden * 6},
          [&](gpu::StreamRef stream, std::uint64_t in, std::uint64_t out) {
            gpu::launch(gpu, kernels::kAddRmsNorm, stream,
                        {.rows = count,
                         .in = in,
                         .accum = out,
                         .weight = weight,
                         .out = out + std::uint64_t{rows} * kHidden * 4,
                         .max_rows = rows,
                         .width = kHidden,
                         .out_type = ElementType::kBf16,
                         .epsilon = 1e-5F});
          });
  measure(bench,
          {"silu_mul", rows, std::uint64_t{rows} * 2 * kIntermediate * 2,
           std::uint64_t{rows} * kIntermediate * 2},
          [&](gpu::StreamRef stream, std::uint64_t in, std::uint64_t out) {
            gpu::launch(gpu, kernels::kSiluMul, stream,
                        {.rows = count,
                         .gate = in,
                         .up = in + kIntermediate * 2,
                         .out = out,
                         .max_rows = rows,
                         .width = kIntermediate,
                         .in_stride = 2 * kIntermediate,
                         .out_stride = kIntermediate,
                         .type = ElementType::kBf16,
                         .reserved = 0});
          });
}

// In place: what it reads of the heads it writes too.
void rope(Bench& bench, std::uint32_t rows) {
  constexpr std::uint32_t kHeads = kQueryHeads + kKvHeads;
  const std::uint64_t data_bytes = std::uint64_t{rows} * kQkvWidth * 2;
  const std::uint64_t turned = std::uint64_t{rows} * kHeads * kHeadDim * 2;
  const std::uint64_t table_bytes = std::uint64_t{rows} * kHeadDim * 4;
  const std::string name = fmt::format("small rope rows {}", rows);
  bench.run(name, [&] {
    Device& device = bench.device;
    Arrays arrays(device.gpu());
    const std::uint64_t count = arrays.put(rows);
    const std::uint64_t table = device.noise(0, table_bytes);
    const std::size_t inputs = std::clamp<std::uint64_t>(kColdBytes / data_bytes, 2, 256);
    const double seconds = device.seconds_each(inputs, [&](gpu::StreamRef stream, std::size_t i) {
      gpu::launch(device.gpu(), kernels::kRope, stream,
                  {.rows = count,
                   .table = table,
                   .data = device.room(i * data_bytes, data_bytes),
                   .max_rows = rows,
                   .stride = kQkvWidth,
                   .num_heads = kHeads,
                   .head_dim = kHeadDim,
                   .rotary_dim = kHeadDim,
                   .type = ElementType::kBf16});
    });
    if (2 * turned >= kMuchBytes) {
      bench.add_copy(name, 2 * turned + table_bytes, seconds);
      return;
    }
    bench.report.add(
        {.name = name,
         .metric = "time",
         .value = seconds * 1e6,
         .unit = "us",
         .bytes_moved = 2 * turned + table_bytes,
         .share_of_limit = bench.limits.empty_seconds / seconds,
         .limit = fmt::format("an empty kernel of a graph, {:.2f} us", bench.limits.empty_seconds * 1e6)});
  });
}

void kv_write(Bench& bench, std::uint32_t rows) {
  gpu::GpuBackend& gpu = bench.device.gpu();
  Arrays arrays(gpu);
  const std::uint64_t count = arrays.put(rows);
  const std::uint32_t blocks = (rows + kBlockSize - 1) / kBlockSize;
  std::vector<std::int64_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::vector<std::int64_t> slots;
  for (std::uint32_t row = 0; row < rows; ++row) {
    slots.push_back(order[row / kBlockSize] * kBlockSize + row % kBlockSize);
  }
  const std::uint64_t slot_array = arrays.put(slots);
  const std::uint64_t side = quant::kv_side_bytes(quant::KvFormat::kBf16, kBlockSize, kKvHeads, kHeadDim);
  constexpr std::uint64_t kRowBytes = std::uint64_t{kKvHeads} * kHeadDim * 2;  // of K or V
  // K and V lie side by side; the pools have whole blocks, of which a short step writes a part.
  measure(bench, {"kv_write", rows, 2 * rows * kRowBytes, 2 * blocks * side},
          [&](gpu::StreamRef stream, std::uint64_t in, std::uint64_t out) {
            gpu::launch(gpu, kernels::kKvWrite, stream,
                        {.rows = count,
                         .k = in,
                         .v = in + kRowBytes,
                         .slots = slot_array,
                         .k_pool = out,
                         .v_pool = out + blocks * side,
                         .max_rows = rows,
                         .stride = 2 * kKvHeads * kHeadDim,
                         .num_kv_heads = kKvHeads,
                         .head_dim = kHeadDim,
                         .block_size = kBlockSize,
                         .num_blocks = blocks,
                         .type = ElementType::kBf16,
                         .k_format = quant::KvFormat::kBf16,
                         .v_format = quant::KvFormat::kBf16,
                         .reserved = 0});
          });
}

void embedding(Bench& bench, std::uint32_t rows) {
  gpu::GpuBackend& gpu = bench.device.gpu();
  Arrays arrays(gpu);
  const std::uint64_t count = arrays.put(rows);
  const std::uint64_t table = bench.device.noise(0, std::uint64_t{kVocab} * kHidden * 2);
  std::mt19937 random(4);
  std::uniform_int_distribution<std::int32_t> any(0, kVocab - 1);
  const Case c{"embedding", rows, std::uint64_t{rows} * kHidden * 2, std::uint64_t{rows} * kHidden * 4};
  // Ids of their own for each input, one array after another.
  std::vector<std::int32_t> ids(c.inputs() * rows);
  for (std::int32_t& id : ids) id = any(random);
  const std::uint64_t id_array = arrays.put(ids);
  std::size_t turn = 0;
  measure(bench, c, [&](gpu::StreamRef stream, std::uint64_t, std::uint64_t out) {
    gpu::launch(gpu, kernels::kEmbedding, stream,
                {.rows = count,
                 .token_ids = id_array + turn * rows * sizeof(std::int32_t),
                 .table = table,
                 .out = out,
                 .max_rows = rows,
                 .width = kHidden,
                 .vocab = kVocab,
                 .table_type = ElementType::kBf16,
                 .out_type = ElementType::kF32});
    turn = (turn + 1) % c.inputs();
  });
}

void argmax(Bench& bench, std::uint32_t rows) {
  gpu::GpuBackend& gpu = bench.device.gpu();
  Arrays arrays(gpu);
  const std::uint64_t count = arrays.put(rows);
  measure(bench, {"argmax of 128256", rows, std::uint64_t{rows} * kVocab * 4, std::uint64_t{rows} * 4},
          [&](gpu::StreamRef stream, std::uint64_t in, std::uint64_t out) {
            gpu::launch(gpu, kernels::kArgmax, stream,
                        {.rows = count, .logits = in, .tokens = out, .max_rows = rows, .vocab = kVocab});
          });
}

}  // namespace

void measure_small_kernels(Bench& bench) {
  for (const std::uint32_t rows : {1U, 32U, 2048U}) {
    norm_and_activation(bench, rows);
    rope(bench, rows);
    kv_write(bench, rows);
    embedding(bench, rows);
  }
  for (const std::uint32_t rows : {1U, 32U}) argmax(bench, rows);
}

}  // namespace metrale::bench
