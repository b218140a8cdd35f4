// SPDX-License-Identifier: Apache-2.0
// mla_attention over blocks of 16 tokens in several formats, decode and prefill, against the processor's rate
// of FP32 multiply-adds measured in the same run: all heads share what is read, so the products set the pace.
// bench-deps: kernels
#include <algorithm>
#include <cmath>
#include <future>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/cpu_features.h>
#include <metrale/base/thread_pool.h>
#include <metrale/kernels/cpu_kernels.h>
#include <metrale/kernels/mla_attention.h>
#include <metrale/kernels/step.h>
#include <metrale/quant/float_convert.h>
#include <metrale/quant/kv_codec.h>

#include "support/multiply_add_rate.h"
#include "support/report.h"

namespace metrale::bench {
namespace {

constexpr unsigned kThreads = 2;
constexpr unsigned kRuns = 7;
constexpr std::uint32_t kBlockSize = 16;
constexpr std::uint32_t kLatentDim = 512;
constexpr std::uint32_t kRopeDim = 64;

struct Model {
  const char* name;
  std::uint32_t num_heads;
};
constexpr Model kModels[] = {{"DeepSeek-V2-Lite", 16}, {"DeepSeek-V3", 128}};

std::uint64_t address(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at);
}
template <class T>
std::uint64_t address(const std::vector<T>& data) {
  return address(static_cast<const void*>(data.data()));
}

std::vector<std::uint16_t> random_bf16(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(count);
  for (auto& value : values) value = quant::float_to_bf16(normal(random));
  return values;
}

// Blocks of normal vectors, a few patterns over and over.
std::vector<std::byte> random_pool(quant::KvFormat format, std::uint32_t dim, std::size_t blocks) {
  constexpr std::size_t kPatterns = 7;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const std::size_t bytes = quant::kv_side_bytes(format, kBlockSize, 1, dim);
  std::vector<std::byte> pool(blocks * bytes);
  std::vector<float> vector(dim);
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto own = std::span(pool).subspan(block * bytes, bytes);
    if (block >= kPatterns) {
      std::ranges::copy(std::span(pool).subspan(block % kPatterns * bytes, bytes), own.begin());
      continue;
    }
    quant::KvStripe stripe(format, quant::KvSide::kKey, kBlockSize, dim, own);
    for (std::uint32_t token = 0; token < kBlockSize; ++token) {
      for (float& x : vector) x = normal(random);
      stripe.encode(token, {}, vector);
    }
  }
  return pool;
}

// A batch of equal sequences whose blocks lie in random order.
class Step {
 public:
  Step(const Model& model, quant::KvFormat format, std::uint32_t batch, std::uint32_t context,
       std::uint32_t queries)
      : heads_(model.num_heads),
        format_(format),
        table_stride_((context + kBlockSize - 1) / kBlockSize),
        counts_{.num_tokens = batch * queries, .num_seqs = batch},
        latents_(random_pool(format, kLatentDim, std::size_t{batch} * table_stride_)),
        ropes_(random_pool(quant::KvFormat::kBf16, kRopeDim, std::size_t{batch} * table_stride_)),
        q_(random_bf16(std::size_t{counts_.num_tokens} * heads_ * kLatentDim)),
        out_(q_.size()),
        workspace_(std::size_t{counts_.num_tokens} * heads_ * kernels::attention_max_splits(context) *
                   (kLatentDim + 2)),
        tables_(std::size_t{batch} * table_stride_) {
    std::iota(tables_.begin(), tables_.end(), 0U);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(3));
    for (std::uint32_t s = 0; s < batch; ++s) {
      starts_.push_back(starts_.back() + queries);
      contexts_.push_back(context);
      rows_.push_back(s);
    }
  }

  [[nodiscard]] std::size_t cache_bytes() const { return latents_.size() + ropes_.size(); }

  [[nodiscard]] kernels::MlaAttentionArgs args() const {
    return {.counts = address(&counts_),
            .q_latent = address(q_),
            .q_rope = address(q_),  // any numbers will do
            .out = address(out_),
            .latent_pool = address(latents_),
            .rope_pool = address(ropes_),
            .block_tables = address(tables_),
            .query_starts = address(starts_),
            .context_lens = address(contexts_),
            .table_rows = address(rows_),
            .workspace = address(workspace_),
            .max_tokens = counts_.num_tokens,
            .max_seqs = counts_.num_seqs,
            .table_stride = table_stride_,
            .workspace_rows = counts_.num_tokens,
            .num_heads = heads_,
            .latent_dim = kLatentDim,
            .rope_dim = kRopeDim,
            .block_size = kBlockSize,
            .q_latent_stride = heads_ * kLatentDim,
            .q_rope_stride = heads_ * kRopeDim,
            .out_stride = heads_ * kLatentDim,
            .type = quant::ElementType::kBf16,
            .latent_format = format_,
            .rope_format = quant::KvFormat::kBf16,
            .scale = 1.0F / std::sqrt(static_cast<float>(kLatentDim + kRopeDim)),
            .window = 0};
  }

 private:
  std::uint32_t heads_;
  quant::KvFormat format_;
  std::uint32_t table_stride_;
  kernels::StepCounts counts_;
  std::vector<std::byte> latents_;
  std::vector<std::byte> ropes_;
  std::vector<std::uint16_t> q_;
  std::vector<std::uint16_t> out_;
  std::vector<float> workspace_;
  std::vector<std::uint32_t> tables_;
  std::vector<std::uint32_t> starts_{0};
  std::vector<std::uint32_t> contexts_;
  std::vector<std::uint32_t> rows_;
};

class Bench {
 public:
  Bench(int argc, char** argv)
      : report_(
            "mla_attention",
            "512 + 64 dimensions, blocks of 16, rope keys in bf16, 2 threads on a CPU each, warm, median of "
            "7 runs; operations of what a query sees",
            argc, argv),
        pool_({.threads = kThreads, .cpus = usable_cpus()}) {
    kernels::register_cpu_kernels(table_);
    const auto& id = kernels::kMlaAttention;
    attention_ = table_.find(id.module, id.function)->body;
    limit_ = multiply_add_rate(pool_, kRuns);
    report_.add({.name = "limit", .metric = "FP32 multiply-adds", .value = limit_ / 1e9, .unit = "GFLOP/s"});
  }

  void measure(const std::string& kind, const Model& model, quant::KvFormat format, std::uint32_t batch,
               std::uint32_t context, std::uint32_t queries) {
    const Step step(model, format, batch, context, queries);
    const double seconds = median_seconds(kRuns, [&] { run(step.args()); });
    const double before = context - queries;
    const double pairs = batch * (before * queries + 0.5 * queries * (queries + 1.0)) * model.num_heads;
    const double rate = pairs * 2 * (2 * kLatentDim + kRopeDim) / seconds;
    const std::string name = fmt::format("{} {} batch {} context {}, {}", kind, model.name, batch, context,
                                         quant::to_string(format));
    report_.add({.name = name,
                 .metric = "time of a layer",
                 .value = seconds * 1e6,
                 .unit = "us",
                 .bytes_moved = step.cache_bytes()});
    report_.add(
        {.name = name,
         .metric = "rate",
         .value = rate / 1e9,
         .unit = "GFLOP/s",
         .share_of_limit = rate / limit_,
         .limit = fmt::format("FP32 multiply-adds of {} threads, {:.0f} GFLOP/s", kThreads, limit_ / 1e9)});
  }
  void write() const { report_.write(); }

 private:
  // The body runs on a worker, the other worker helps.
  void run(const kernels::MlaAttentionArgs& args) {
    std::packaged_task<void()> task([&] { attention_(pool_, &args); });
    auto done = task.get_future();
    pool_.post([&task] { task(); });
    done.get();
  }

  Report report_;
  ThreadPool pool_;
  gpu::CpuKernelTable table_;
  gpu::CpuKernelBody attention_ = nullptr;
  double limit_ = 0;
};

constexpr quant::KvFormat kFormats[] = {
    quant::KvFormat::kBf16,   quant::KvFormat::kFp8,    quant::KvFormat::kTurbo8, quant::KvFormat::kTurbo4,
    quant::KvFormat::kTurbo3, quant::KvFormat::kTurbo2, quant::KvFormat::kNvfp4};

}  // namespace
}  // namespace metrale::bench

int main(int argc, char** argv) {
  using namespace metrale::bench;
  Bench bench(argc, argv);
  for (const Model& model : kModels) {
    for (const auto format : kFormats) bench.measure("decode", model, format, 1, 4096, 1);
    bench.measure("decode", model, metrale::quant::KvFormat::kBf16, 4, 4096, 1);
    bench.measure("prefill", model, metrale::quant::KvFormat::kBf16, 1, 512, 512);
  }
  bench.write();
  return 0;
}
