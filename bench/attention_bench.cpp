// SPDX-License-Identifier: Apache-2.0
// paged_attention over a BF16 cache in blocks of 16 tokens: decode against the memory's read rate, prefill
// against the processor's rate of FP32 multiply-adds, both measured in the same run. Decode walks through as
// many layers as it takes to leave every cache. Then decode over other formats against BF16, in turns, with
// all of the processor's instructions and with AVX2 alone.
// bench-deps: kernels
#include <cmath>
#include <cstring>
#include <ctime>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>

#include <fmt/format.h>

#include <metrale/base/aligned_buffer.h>
#include <metrale/base/cpu_features.h>
#include <metrale/base/thread_pool.h>
#include <metrale/kernels/attention.h>
#include <metrale/kernels/cpu_kernels.h>
#include <metrale/kernels/step.h>
#include <metrale/quant/float_convert.h>
#include <metrale/quant/kv_codec.h>

#include "support/multiply_add_rate.h"
#include "support/read_rate.h"
#include "support/report.h"

namespace metrale::bench {
namespace {

constexpr unsigned kThreads = 2;
constexpr unsigned kRuns = 7;
constexpr std::size_t kColdBytes = std::size_t{384} << 20;  // at least so much is read between two uses
constexpr std::uint32_t kBlockSize = 16;

struct Model {
  const char* name;
  std::uint32_t num_q_heads;
  std::uint32_t num_kv_heads;
  std::uint32_t head_dim;

  [[nodiscard]] std::size_t side_bytes(quant::KvFormat format) const {
    return quant::kv_side_bytes(format, kBlockSize, num_kv_heads, head_dim);
  }
};
constexpr Model kModels[] = {{"SmolLM2-135M", 9, 3, 64}, {"Llama-8B", 32, 8, 128}};

std::uint64_t address(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at);
}

// The pool as a backend uses it: kernel bodies run on a worker, the other worker helps.
class Machine {
 public:
  Machine() : pool_({.threads = kThreads, .cpus = usable_cpus()}) {
    kernels::register_cpu_kernels(table_);
    const auto& id = kernels::kPagedAttention;
    attention_ = table_.find(id.module, id.function)->body;
  }

  void on_worker(const std::function<void()>& work) {
    std::packaged_task<void()> task(work);
    auto done = task.get_future();
    pool_.post([&task] { task(); });
    done.get();
  }
  void attention(const kernels::AttentionArgs& args) { attention_(pool_, &args); }
  [[nodiscard]] ThreadPool& pool() { return pool_; }

 private:
  ThreadPool pool_;
  gpu::CpuKernelTable table_;
  gpu::CpuKernelBody attention_ = nullptr;
};

// BF16 numbers of about one in size.
void fill_bf16(std::span<std::byte> memory) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> pattern(65521);
  for (auto& value : pattern) value = quant::float_to_bf16(normal(random));
  for (std::size_t at = 0; at < memory.size(); at += pattern.size() * 2) {
    std::memcpy(memory.data() + at, pattern.data(), std::min(pattern.size() * 2, memory.size() - at));
  }
}

// In huge pages, as the CPU backend allocates.
AlignedBuffer huge_buffer(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  AlignedBuffer buffer((bytes + kHugePage - 1) / kHugePage * kHugePage, kHugePage);
  ::madvise(buffer.data(), buffer.size_bytes(), MADV_HUGEPAGE);
  return buffer;
}

constexpr float kHeadScale = 0.01F;  // of formats that have one

// Stripes of normal vectors of a side, over and over.
void fill_side(quant::KvFormat format, quant::KvSide side, std::uint32_t head_dim,
               std::span<std::byte> memory) {
  constexpr std::size_t kStripes = 61;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const std::size_t bytes = quant::kv_head_stripe_bytes(format, kBlockSize, head_dim);
  std::vector<std::byte> pattern(kStripes * bytes);
  std::vector<float> vector(head_dim);
  for (std::size_t i = 0; i < kStripes; ++i) {
    quant::KvStripe stripe(format, side, kBlockSize, head_dim, std::span(pattern).subspan(i * bytes, bytes));
    for (std::uint32_t token = 0; token < kBlockSize; ++token) {
      for (float& x : vector) x = normal(random);
      stripe.encode(token, {.scale = kHeadScale, .diagonal = {}, .mean = {}}, vector);
    }
  }
  for (std::size_t at = 0; at < memory.size(); at += pattern.size()) {
    std::memcpy(memory.data() + at, pattern.data(), std::min(pattern.size(), memory.size() - at));
  }
}

// One batch of equal sequences; the blocks of a layer lie in random order.
class Step {
 public:
  Step(const Model& model, quant::KvFormat format, std::uint32_t batch, std::uint32_t context,
       std::uint32_t queries, std::size_t cold_bytes)
      : model_(model),
        format_(format),
        blocks_(std::size_t{batch} * ((context + kBlockSize - 1) / kBlockSize)),
        layers_(std::max<std::size_t>(1, cold_bytes / (2 * layer_bytes()))),
        pools_(huge_buffer(2 * layers_ * layer_bytes())),
        q_(std::size_t{batch} * queries * width() * 2, 64),
        out_(std::size_t{batch} * queries * width() * 2, 64),
        tables_(blocks_),
        counts_{.num_tokens = batch * queries, .num_seqs = batch} {
    fill_bf16(q_.span());
    const auto pools = pools_.span().first(2 * layers_ * layer_bytes());
    for (std::size_t side = 0; side < 2 * layers_; ++side) {
      fill_side(format, side % 2 == 0 ? quant::KvSide::kKey : quant::KvSide::kValue, model.head_dim,
                pools.subspan(side * layer_bytes(), layer_bytes()));
    }
    scales_.assign(model.num_kv_heads, kHeadScale);
    std::iota(tables_.begin(), tables_.end(), 0U);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(2));
    for (std::uint32_t s = 0; s < batch; ++s) {
      starts_.push_back(starts_.back() + queries);
      contexts_.push_back(context);
      rows_.push_back(s);
    }
    workspace_.resize(std::size_t{counts_.num_tokens} * model.num_q_heads *
                      kernels::attention_max_splits(context) * (model.head_dim + 2));
  }

  [[nodiscard]] std::size_t layer_bytes() const { return blocks_ * model_.side_bytes(format_); }
  [[nodiscard]] std::size_t layers() const { return layers_; }

  // Every layer once.
  void run(Machine& machine) {
    machine.on_worker([&] {
      for (std::size_t layer = 0; layer < layers_; ++layer) machine.attention(args(layer));
    });
  }

 private:
  [[nodiscard]] std::uint32_t width() const { return model_.num_q_heads * model_.head_dim; }
  [[nodiscard]] kernels::AttentionArgs args(std::size_t layer) const {
    kernels::AttentionArgs a{};
    a.counts = address(&counts_);
    a.q = address(q_.data());
    a.out = address(out_.data());
    a.k_pool = address(pools_.data() + 2 * layer * layer_bytes());
    a.v_pool = a.k_pool + layer_bytes();
    a.block_tables = address(tables_.data());
    a.query_starts = address(starts_.data());
    a.context_lens = address(contexts_.data());
    a.table_rows = address(rows_.data());
    a.workspace = address(workspace_.data());
    a.max_tokens = counts_.num_tokens;
    a.max_seqs = counts_.num_seqs;
    a.table_stride = static_cast<std::uint32_t>(blocks_ / counts_.num_seqs);
    a.workspace_rows = counts_.num_tokens;
    a.num_q_heads = model_.num_q_heads;
    a.num_kv_heads = model_.num_kv_heads;
    a.head_dim = model_.head_dim;
    a.block_size = kBlockSize;
    a.q_stride = width();
    a.out_stride = width();
    a.type = quant::ElementType::kBf16;
    a.k_format = format_;
    a.v_format = format_;
    a.k_scales = address(scales_.data());
    a.v_scales = a.k_scales;
    a.scale = 1.0F / std::sqrt(static_cast<float>(model_.head_dim));
    return a;
  }

  Model model_;
  quant::KvFormat format_;
  std::size_t blocks_;
  std::size_t layers_;
  AlignedBuffer pools_;
  AlignedBuffer q_;
  AlignedBuffer out_;
  std::vector<std::uint32_t> tables_;
  std::vector<std::uint32_t> starts_{0};
  std::vector<std::uint32_t> contexts_;
  std::vector<std::uint32_t> rows_;
  std::vector<float> workspace_;
  std::vector<float> scales_;
  kernels::StepCounts counts_;
};

void decode(Report& report, Machine& machine, ReadRate& reading, const Model& model, std::uint32_t batch,
            std::uint32_t context) {
  Step step(model, quant::KvFormat::kBf16, batch, context, 1, kColdBytes);
  const std::size_t bytes = 2 * step.layer_bytes();
  // The read rate changes from second to second: each run is compared with the reads before and after it.
  std::vector<double> seconds;
  std::vector<double> reads{reading.measure()};
  std::vector<double> shares;
  for (unsigned run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    step.run(machine);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    seconds.push_back(time.count() / static_cast<double>(step.layers()));
    reads.push_back(reading.measure());
    shares.push_back(static_cast<double>(bytes) / seconds.back() / 1e9 / ((reads[run] + reads[run + 1]) / 2));
  }
  const std::string name = fmt::format("decode {} batch {} context {}", model.name, batch, context);
  report.add({.name = name, .metric = "time of a layer", .value = median(seconds) * 1e6, .unit = "us"});
  report.add({.name = name,
              .metric = "rate",
              .value = static_cast<double>(bytes) / median(seconds) / 1e9,
              .unit = "GB/s",
              .bytes_moved = bytes,
              .share_of_limit = median(shares),
              .limit = fmt::format(
                  "read rate of {} threads around each run (median of the ratios; read at {:.1f} GB/s)",
                  kThreads, median(reads))});
}

void prefill(Report& report, Machine& machine, const Model& model, std::uint32_t tokens, double limit) {
  Step step(model, quant::KvFormat::kBf16, 1, tokens, tokens, 0);
  const double seconds = median_seconds(kRuns, [&] { step.run(machine); });
  const double pairs = 0.5 * tokens * (tokens + 1.0) * model.num_q_heads;
  const double rate = pairs * 4 * model.head_dim / seconds;
  const std::string name = fmt::format("prefill {} tokens {}", model.name, tokens);
  report.add({.name = name, .metric = "time of a layer", .value = seconds * 1e6, .unit = "us"});
  report.add(
      {.name = name,
       .metric = "rate",
       .value = rate / 1e9,
       .unit = "GFLOP/s",
       .share_of_limit = rate / limit,
       .limit = fmt::format("FP32 multiply-adds of {} threads, {:.0f} GFLOP/s", kThreads, limit / 1e9)});
}

constexpr quant::KvFormat kCompared[] = {
    quant::KvFormat::kBf16,   quant::KvFormat::kTurbo4,  quant::KvFormat::kTurbo3, quant::KvFormat::kTurbo2,
    quant::KvFormat::kTurbo8, quant::KvFormat::kTurbo8i, quant::KvFormat::kFp8,    quant::KvFormat::kNvfp4};
constexpr std::uint32_t kComparedContext = 8192;
constexpr std::uint32_t kComparedBatch = 4;
constexpr unsigned kTurns = 9;

// Seconds of the wall clock, and of the processor for all threads together: the same for each thread on a
// quiet machine.
struct Times {
  std::vector<double> wall;
  std::vector<double> processor;
};

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void time_step(Machine& machine, Step& step, Times& times) {
  const double processor = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  step.run(machine);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  times.wall.push_back(wall.count() / static_cast<double>(step.layers()));
  times.processor.push_back((processor_seconds() - processor) / static_cast<double>(step.layers()));
}

double median_ratio(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> ratios;
  for (std::size_t turn = 0; turn < of.size(); ++turn) ratios.push_back(of[turn] / to[turn]);
  return median(std::move(ratios));
}

// All formats in turns: a turn's times are compared with the same turn's BF16, and what one format reads
// leaves the caches while the others run.
void compare_formats(Report& report, Machine& machine, const Model& model, std::string_view isa) {
  std::vector<std::unique_ptr<Step>> steps;
  for (const quant::KvFormat format : kCompared) {
    steps.push_back(std::make_unique<Step>(model, format, kComparedBatch, kComparedContext, 1, kColdBytes));
  }
  std::vector<Times> times(steps.size());
  Times warming;
  for (unsigned turn = 0; turn <= kTurns; ++turn) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      time_step(machine, *steps[i], turn == 0 ? warming : times[i]);
    }
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string name = fmt::format("decode {} batch {} context {}, {}, {}", model.name, kComparedBatch,
                                         kComparedContext, quant::to_string(kCompared[i]), isa);
    report.add({.name = name,
                .metric = "time of a layer",
                .value = median(times[i].wall) * 1e6,
                .unit = "us",
                .bytes_moved = 2 * steps[i]->layer_bytes()});
    report.add({.name = name,
                .metric = "speed over bf16's",
                .value = median_ratio(times[0].wall, times[i].wall),
                .unit = "x"});
    report.add({.name = name,
                .metric = "speed over bf16's by processor time",
                .value = median_ratio(times[0].processor, times[i].processor),
                .unit = "x"});
  }
}

void measure_bf16(Report& report, Machine& machine) {
  ReadRate reading(machine.pool());
  const double operations = multiply_add_rate(machine.pool(), kRuns);
  report.add({.name = "limit", .metric = "FP32 multiply-adds", .value = operations / 1e9, .unit = "GFLOP/s"});
  for (const Model& model : kModels) {
    for (const std::uint32_t context : {512U, 8192U}) {
      for (const std::uint32_t batch : {1U, 4U, 16U}) decode(report, machine, reading, model, batch, context);
    }
    for (const std::uint32_t tokens : {512U, 2048U}) prefill(report, machine, model, tokens, operations);
  }
}

// With any argument: the comparison of formats alone.
int run(int argc, char** argv) {
  Report report("attention",
                "BF16 cache in blocks of 16, 2 threads on a CPU each, median of 7 runs; decode cold, prefill "
                "warm; causal operations counted only. Formats: in turns, medians of 9 and of 9 ratios",
                argc, argv);
  Machine machine;
  for (const Model& model : kModels) compare_formats(report, machine, model, to_string(cpu_isa()));
  if (report.arguments().empty()) measure_bf16(report, machine);
  limit_cpu_isa(CpuIsa::kAvx2);
  for (const Model& model : kModels) compare_formats(report, machine, model, to_string(cpu_isa()));
  report.write();
  return 0;
}

}  // namespace
}  // namespace metrale::bench

int main(int argc, char** argv) {
  return metrale::bench::run(argc, argv);
}
