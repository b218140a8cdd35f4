// SPDX-License-Identifier: Apache-2.0
// paged_attention over blocks of 16 tokens in random order, and FlashInfer's decode on the same steps: decode
// against the read rate, prefill (causal operations only) against the best BF16 rate seen.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include <metrale/gpu/kernel.h>
#include <metrale/kernels/attention.h>
#include <metrale/kernels/cuda_kernels.h>
#include <metrale/kernels/flashinfer.h>
#include <metrale/kernels/step.h>

#include "cuda/cases.h"

namespace metrale::bench {
namespace {

using quant::ElementType;
using quant::KvFormat;

constexpr std::uint32_t kBlockSize = 16;
constexpr std::uint64_t kColdBytes = 768 * kMiB;  // at least so much is read between two uses

struct Heads {
  std::uint32_t q;
  std::uint32_t kv;
  std::uint32_t dim;
};
constexpr Heads kLlama{32, 8, 128};
constexpr Heads kSmol{9, 3, 64};

struct StepShape {
  Heads heads;
  std::uint32_t batch;
  std::uint32_t context;
  std::uint32_t queries;  // of each sequence
  ElementType type = ElementType::kBf16;

  [[nodiscard]] KvFormat format() const {
    return type == ElementType::kF32 ? KvFormat::kFp32 : KvFormat::kBf16;
  }
  [[nodiscard]] std::uint32_t blocks_per_seq() const { return (context + kBlockSize - 1) / kBlockSize; }
  [[nodiscard]] std::uint64_t side_bytes() const {  // K or V of a layer
    return std::uint64_t{batch} * blocks_per_seq() *
           quant::kv_side_bytes(format(), kBlockSize, heads.kv, heads.dim);
  }
  [[nodiscard]] std::uint32_t tokens() const { return batch * queries; }
  [[nodiscard]] std::uint32_t width() const { return heads.q * heads.dim; }
  [[nodiscard]] std::uint64_t q_bytes() const {
    return std::uint64_t{tokens()} * width() * quant::element_bytes(type);
  }
};

// One batch of equal sequences, in as many layers as the cold reads take.
class Step {
 public:
  Step(Device& device, const StepShape& shape, std::size_t layers)
      : device_(device), shape_(shape), layers_(layers), arrays_(device.gpu()), args_(fixed_args()) {}

  [[nodiscard]] double seconds(const gpu::KernelId<kernels::AttentionArgs>& id) {
    return device_.seconds_each(layers_, [&](gpu::StreamRef stream, std::size_t layer) {
      kernels::AttentionArgs args = args_;
      args.k_pool = device_.noise(2 * layer * shape_.side_bytes(), shape_.side_bytes());
      args.v_pool = device_.noise((2 * layer + 1) * shape_.side_bytes(), shape_.side_bytes());
      gpu::launch(device_.gpu(), id, stream, args);
    });
  }

 private:
  [[nodiscard]] kernels::AttentionArgs fixed_args() {
    const std::uint32_t blocks = shape_.batch * shape_.blocks_per_seq();
    std::vector<std::uint32_t> tables(blocks);
    std::iota(tables.begin(), tables.end(), 0U);
    std::shuffle(tables.begin(), tables.end(), std::mt19937(2));
    std::vector<std::uint32_t> starts;
    for (std::uint32_t s = 0; s <= shape_.batch; ++s) starts.push_back(s * shape_.queries);
    std::vector<std::uint32_t> rows(shape_.batch);
    std::iota(rows.begin(), rows.end(), 0U);
    const std::uint64_t splits = kernels::attention_max_splits(shape_.blocks_per_seq() * kBlockSize);

    kernels::AttentionArgs a{};
    a.counts = arrays_.put(
        std::vector<kernels::StepCounts>{{.num_tokens = shape_.tokens(), .num_seqs = shape_.batch}});
    a.q = device_.noise(4 * kGiB, shape_.q_bytes());
    a.out = device_.room(0, shape_.q_bytes());
    a.block_tables = arrays_.put(tables);
    a.query_starts = arrays_.put(starts);
    a.context_lens = arrays_.put(std::vector<std::uint32_t>(shape_.batch, shape_.context));
    a.table_rows = arrays_.put(rows);
    // As an engine sizes it: a row for each sequence.
    a.workspace = arrays_.room(shape_.batch * shape_.heads.q * splits * (shape_.heads.dim + 2) * 4);
    a.max_tokens = shape_.tokens();
    a.max_seqs = shape_.batch;
    a.table_stride = shape_.blocks_per_seq();
    a.workspace_rows = shape_.batch;
    a.num_q_heads = shape_.heads.q;
    a.num_kv_heads = shape_.heads.kv;
    a.head_dim = shape_.heads.dim;
    a.block_size = kBlockSize;
    a.q_stride = shape_.width();
    a.out_stride = shape_.width();
    a.type = shape_.type;
    a.k_format = shape_.format();
    a.v_format = shape_.format();
    a.scale = 1.0F / std::sqrt(static_cast<float>(shape_.heads.dim));
    return a;
  }

  Device& device_;
  StepShape shape_;
  std::size_t layers_;
  Arrays arrays_;
  kernels::AttentionArgs args_;
};

std::string describe(const StepShape& s) {
  return fmt::format("{} x {}, heads {}/{} of {}, {}", s.batch, s.context, s.heads.q, s.heads.kv, s.heads.dim,
                     to_string(s.type));
}

void decode(Bench& bench, const std::string& kind, const gpu::KernelId<kernels::AttentionArgs>& id,
            const StepShape& shape) {
  const std::string name = fmt::format("attention decode{} {}", kind, describe(shape));
  bench.run(name, [&] {
    const std::uint64_t bytes = 2 * shape.side_bytes();
    Step step(bench.device, shape, std::clamp<std::uint64_t>(kColdBytes / bytes, 1, 64));
    bench.add_read(name, bytes, step.seconds(id));
  });
}

void prefill(Bench& bench, const StepShape& shape) {
  const std::string name = fmt::format("attention prefill {}", describe(shape));
  bench.run(name, [&] {
    Step step(bench.device, shape, 2);
    const double pairs = 0.5 * shape.queries * (shape.queries + 1.0) * shape.batch * shape.heads.q;
    bench.add_products(name, bench.limits.bf16, pairs * 4 * shape.heads.dim,
                       step.seconds(kernels::kPagedAttention));
  });
}

}  // namespace

void measure_attention(Bench& bench) {
  const StepShape shapes[] = {{kLlama, 32, 32768, 1}, {kLlama, 32, 2048, 1},
                              {kLlama, 1, 32768, 1},  {kLlama, 1, 131072, 1},
                              {kSmol, 8, 8192, 1},    {kLlama, 8, 8192, 1, ElementType::kF32}};
  for (const StepShape& shape : shapes) decode(bench, "", kernels::kPagedAttention, shape);
  if (kernels::has_peer_kernels()) {
    for (const StepShape& shape : shapes) {
      if (shape.type == ElementType::kBf16) decode(bench, " FlashInfer", kernels::kFlashInferDecode, shape);
    }
  } else {
    fmt::print("attention decode FlashInfer is left out: built without METRALE_PEERS\n");
  }
  prefill(bench, {kLlama, 1, 8192, 8192});
  prefill(bench, {kLlama, 4, 2048, 2048});
}

}  // namespace metrale::bench
