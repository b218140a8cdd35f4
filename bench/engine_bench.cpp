// SPDX-License-Identifier: Apache-2.0
// bench-deps: engine runtime
// The whole engine on the demo model: prefill and decode speed. With --dump DIR it measures nothing and
// writes every logit of the committed prompts as float32 [prompt][position][vocab], fp32.bin and bf16.bin,
// for scripts/bench/parity_hf.py.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/clock.h>
#include <metrale/base/cpu_set.h>
#include <metrale/base/error.h>
#include <metrale/base/thread_pool.h>
#include <metrale/engine/engine.h>
#include <metrale/runtime/runtime.h>

#include "support/read_rate.h"
#include "support/report.h"

namespace metrale {
namespace {

constexpr const char* kModel = "build/models/smollm2-135m-instruct";
constexpr const char* kGolden = "tests/golden/engine/smollm2_fp32.bin";
constexpr std::uint32_t kPrefill = 512;
constexpr std::size_t kPrompts = 8;
constexpr std::size_t kPositions = 128;
constexpr unsigned kRuns = 7;
constexpr unsigned kDecodeRuns = 11;
constexpr unsigned kDecodeSteps = 16;
constexpr unsigned kThreads = 2;

using Tokens = std::vector<std::int32_t>;

// One sequence through the decoder, without the scheduler.
class Driver {
 public:
  Driver(gpu::GpuBackend& gpu, quant::ElementType compute, std::uint32_t max_seq_len,
         std::uint32_t max_batch_tokens, bool fast = false)
      : engine_(gpu, kModel, options(compute, max_seq_len, max_batch_tokens, fast), clock_) {
    std::vector<BlockId> blocks;
    while (const auto block = engine_.cache().try_alloc_block()) blocks.push_back(*block);
    engine_.decoder().set_blocks(0, 0, blocks);
  }

  void run(std::span<const std::int32_t> tokens, std::uint32_t start, std::uint32_t logit_rows) {
    const engine::StepSequence step{
        .table_row = 0, .start = start, .tokens = tokens, .logit_rows = logit_rows};
    engine_.decoder().run(std::span(&step, 1));
  }

  [[nodiscard]] engine::Engine& engine() { return engine_; }

 private:
  static engine::EngineOptions options(quant::ElementType compute, std::uint32_t max_seq_len,
                                       std::uint32_t max_batch_tokens, bool fast) {
    engine::EngineOptions made;
    made.fast = fast;
    made.max_seq_len = max_seq_len;
    made.max_batch_tokens = max_batch_tokens;
    made.compute = compute;
    made.kv_dtype = quant::parse_kv_dtype(compute == quant::ElementType::kF32 ? "fp32" : "bf16");
    return made;
  }

  SteadyClock clock_;
  engine::Engine engine_;
};

// Exact and fast in turns, so that the machine's moods meet both.
void measure_prefill(bench::Report& report, gpu::GpuBackend& gpu, Driver& exact, const Tokens& prompt) {
  Driver fast(gpu, quant::ElementType::kBf16, kPrefill, kPrefill, /*fast=*/true);
  std::vector<double> seconds[2];
  for (unsigned run = 0; run < kRuns; ++run) {
    for (Driver* driver : {&exact, &fast}) {
      seconds[driver == &fast ? 1 : 0].push_back(bench::median_seconds(1, [&] {
        driver->run(prompt, 0, 1);
        (void)driver->engine().decoder().read_greedy_tokens();
      }));
    }
  }
  const double exact_rate = kPrefill / bench::median(seconds[0]);
  const double fast_rate = kPrefill / bench::median(seconds[1]);
  report.add({.name = fmt::format("prefill of {} tokens, BF16", kPrefill),
              .metric = "rate",
              .value = exact_rate,
              .unit = "tokens/s",
              .share_of_limit = exact_rate / fast_rate,
              .limit = fmt::format("with --fast in the same run, {:.0f} tokens/s", fast_rate)});
  report.add({.name = fmt::format("prefill of {} tokens, BF16, --fast", kPrefill),
              .metric = "rate",
              .value = fast_rate,
              .unit = "tokens/s"});
}

void measure(bench::Report& report, gpu::GpuBackend& gpu) {
  Driver driver(gpu, quant::ElementType::kBf16, 2 * kPrefill, kPrefill);
  const Tokens prompt(kPrefill, 42);
  measure_prefill(report, gpu, driver, prompt);

  const std::uint64_t bytes =
      driver.engine().weight_bytes() + driver.engine().cache().config().bytes_per_token() * kPrefill;
  ThreadPool pool({.threads = kThreads, .cpus = usable_cpus()});
  bench::ReadRate reading(pool);
  // The read rate changes from second to second: each run is compared with the reads before and after it.
  std::vector<double> seconds;
  std::vector<double> reads{reading.measure()};
  std::vector<double> shares;
  for (unsigned run = 0; run < kDecodeRuns; ++run) {
    seconds.push_back(bench::median_seconds(kDecodeSteps, [&] {
      driver.run(std::span(prompt).first(1), kPrefill, 1);
      (void)driver.engine().decoder().read_greedy_tokens();
    }));
    reads.push_back(reading.measure());
    shares.push_back(static_cast<double>(bytes) / seconds.back() / 1e9 / ((reads[run] + reads[run + 1]) / 2));
  }
  const std::string name = fmt::format("decode step at a context of {}, BF16", kPrefill);
  report.add({.name = "read of 1.25 GiB",
              .metric = "rate",
              .value = bench::median(reads),
              .unit = "GB/s",
              .bytes_moved = reading.memory().size()});
  report.add({.name = name,
              .metric = "rate",
              .value = 1 / bench::median(seconds),
              .unit = "tokens/s",
              .bytes_moved = bytes});
  report.add({.name = name,
              .metric = "weights and KV read",
              .value = static_cast<double>(bytes) / bench::median(seconds) / 1e9,
              .unit = "GB/s",
              .bytes_moved = bytes,
              .share_of_limit = bench::median(shares),
              .limit = fmt::format(
                  "read rate of {} threads around each run (median of the ratios; read at {:.1f} GB/s)",
                  kThreads, bench::median(reads))});
}

// The golden file begins with the tokens: uint32 [8][128].
std::vector<Tokens> read_prompts() {
  std::ifstream file(kGolden, std::ios::binary);
  std::vector<Tokens> prompts(kPrompts, Tokens(kPositions));
  for (Tokens& prompt : prompts) {
    file.read(reinterpret_cast<char*>(prompt.data()),
              static_cast<std::streamsize>(kPositions * sizeof(prompt[0])));
  }
  if (!file) throw IoError("cannot read", kGolden, 0);
  return prompts;
}

void dump_logits(gpu::GpuBackend& gpu, quant::ElementType compute, const std::string& path) {
  Driver driver(gpu, compute, kPositions, kPositions);
  std::ofstream out(path, std::ios::binary);
  for (const Tokens& prompt : read_prompts()) {
    driver.run(prompt, 0, kPositions);
    const std::span<const float> logits = driver.engine().decoder().read_logits();
    out.write(reinterpret_cast<const char*>(logits.data()),
              static_cast<std::streamsize>(logits.size_bytes()));
  }
  if (!out.flush()) throw IoError("cannot write", path, 0);
}

int run(int argc, char** argv) {
  bench::Report report(
      "engine",
      fmt::format(
          "SmolLM2-135M-Instruct, one sequence, CPU backend, {} threads on a CPU each; medians of {} runs",
          kThreads, kRuns),
      argc, argv);
  const auto gpu = runtime::open_backend({.threads = kThreads, .cpus = usable_cpus()});
  const std::vector<std::string>& arguments = report.arguments();
  if (arguments.size() == 2 && arguments[0] == "--dump") {
    std::filesystem::create_directories(arguments[1]);
    dump_logits(*gpu, quant::ElementType::kF32, arguments[1] + "/fp32.bin");
    dump_logits(*gpu, quant::ElementType::kBf16, arguments[1] + "/bf16.bin");
    return 0;
  }
  measure(report, *gpu);
  report.write();
  return 0;
}

}  // namespace
}  // namespace metrale

int main(int argc, char** argv) {
  try {
    return metrale::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine: %s\n", error.what());
    return 1;
  }
}
