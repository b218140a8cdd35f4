// SPDX-License-Identifier: Apache-2.0
// A whole model: load, prefill in chunks, decode steps against the bytes that they must read, and what the
// host does while the device waits.
#include <algorithm>
#include <chrono>
#include <filesystem>

#include <fmt/format.h>

#include <metrale/base/clock.h>
#include <metrale/engine/engine.h>

#include "cuda/cases.h"
#include "support/shared_prefix.h"

namespace metrale::bench {
namespace {

constexpr std::uint32_t kPrompt = 2048;
constexpr std::uint32_t kContext = 512;
constexpr std::uint32_t kBatch = 32;
constexpr unsigned kDecodeSteps = 41;

using Steady = std::chrono::steady_clock;
using Tokens = std::vector<std::int32_t>;

double seconds_since(Steady::time_point start) {
  return std::chrono::duration<double>(Steady::now() - start).count();
}

engine::EngineOptions engine_options() {
  engine::EngineOptions options;
  options.max_seq_len = kPrompt;
  options.max_batch_size = kBatch;
  options.max_batch_tokens = kPrompt;
  options.compute = quant::ElementType::kBf16;
  options.kv_dtype = quant::parse_kv_dtype("bf16");
  return options;
}

// Sequences through the decoder, without the scheduler.
class Driver {
 public:
  Driver(gpu::GpuBackend& gpu, const std::string& model) : engine_(gpu, model, engine_options(), clock_) {
    const std::uint32_t blocks = kPrompt / engine_.limits().block_size;
    for (std::uint32_t row = 0; row < kBatch; ++row) {
      std::vector<BlockId> table;
      while (table.size() < blocks) table.push_back(engine_.cache().alloc_block());
      engine_.decoder().set_blocks(row, 0, table);
    }
    for (std::uint32_t i = 0; i < kPrompt; ++i) {
      prompt_.push_back(
          static_cast<std::int32_t>((std::uint64_t{i} * 7919 + 3) % engine_.config().vocab_size));
    }
  }

  [[nodiscard]] const engine::Engine& engine() const { return engine_; }

  // The first `tokens` of the prompt in chunks; only the last has a logit row.
  void prefill(std::uint32_t row, std::uint32_t tokens, std::uint32_t chunk) {
    for (std::uint32_t start = 0; start < tokens; start += chunk) {
      const std::uint32_t length = std::min(chunk, tokens - start);
      const engine::StepSequence step{.table_row = row,
                                      .start = start,
                                      .tokens = std::span(prompt_).subspan(start, length),
                                      .logit_rows = start + length == tokens ? 1U : 0U};
      engine_.decoder().run(std::span(&step, 1));
    }
    (void)engine_.decoder().read_greedy_tokens();
  }

  // The last `tokens` of the prompt, over what is in the cache.
  void extend(std::uint32_t row, std::uint32_t tokens) {
    const engine::StepSequence step{.table_row = row,
                                    .start = kPrompt - tokens,
                                    .tokens = std::span(prompt_).last(tokens),
                                    .logit_rows = 1};
    engine_.decoder().run(std::span(&step, 1));
    (void)engine_.decoder().read_greedy_tokens();
  }

  // The token that makes each context kContext tokens long.
  [[nodiscard]] std::vector<engine::StepSequence> decode_step(std::uint32_t batch) const {
    std::vector<engine::StepSequence> step;
    for (std::uint32_t row = 0; row < batch; ++row) {
      step.push_back({.table_row = row,
                      .start = kContext - 1,
                      .tokens = std::span(prompt_).subspan(kContext - 1, 1),
                      .logit_rows = 1});
    }
    return step;
  }

  // Seconds until the step is enqueued; its tokens are there when the call returns.
  double decode(std::span<const engine::StepSequence> step) {
    const auto start = Steady::now();
    engine_.decoder().run(step);
    const double enqueued = seconds_since(start);
    (void)engine_.decoder().read_greedy_tokens();
    return enqueued;
  }

 private:
  SteadyClock clock_;
  engine::Engine engine_;
  Tokens prompt_;
};

// Of the layers' products and of causal attention.
double prefill_operations(const engine::ModelConfig& config, std::uint32_t tokens) {
  const double q_width = double{1} * config.num_q_heads * config.head_dim;
  const double kv_width = double{1} * config.num_kv_heads * config.head_dim;
  const double weights = double{1} * config.hidden_size * (2 * q_width + 2 * kv_width) +
                         3.0 * config.hidden_size * config.intermediate_size;
  const double attention = 4 * q_width * 0.5 * tokens * (tokens + 1.0);
  return config.num_layers * (2 * weights * tokens + attention);
}

void measure_prefill(Bench& bench, Driver& driver, const std::string& group, std::uint32_t chunk) {
  const std::string name = fmt::format("{} prefill of {} tokens in chunks of {}", group, kPrompt, chunk);
  bench.run(name, [&] {
    const double seconds = median_seconds(Device::kRuns, [&] { driver.prefill(0, kPrompt, chunk); });
    const double rate = prefill_operations(driver.engine().config(), kPrompt) / seconds;
    bench.limits.bf16.see(bench.report, rate);
    bench.report.add({.name = name,
                      .metric = fmt::format("rate at {:.4g} TFLOP/s", rate / 1e12),
                      .value = kPrompt / seconds,
                      .unit = "tokens/s",
                      .share_of_limit = rate / bench.limits.bf16.rate(),
                      .limit = bench.limits.bf16.describe()});
  });
}

void measure_extension(Bench& bench, Driver& driver, const std::string& group) {
  constexpr std::uint32_t kTokens = 32;
  const std::string name = fmt::format("{} prefill of the last {} of {} tokens", group, kTokens, kPrompt);
  bench.run(name, [&] {
    driver.prefill(0, kPrompt, kPrompt);
    const double seconds = median_seconds(kDecodeSteps, [&] { driver.extend(0, kTokens); });
    bench.report.add({.name = name, .metric = "time", .value = seconds * 1e6, .unit = "us"});
  });
}

// Weights and KV of one step: of the embedding only a row a token is read where the head is another matrix.
std::uint64_t decode_bytes(const engine::Engine& engine, std::uint32_t batch) {
  const engine::ModelConfig& config = engine.config();
  const std::uint64_t embedding = std::uint64_t{config.vocab_size} * config.hidden_size * 2;
  return engine.weight_bytes() - (config.tie_word_embeddings ? 0 : embedding) +
         std::uint64_t{batch} * kContext * engine.cache().config().bytes_per_token();
}

void measure_decode(Bench& bench, Driver& driver, const std::string& group, std::uint32_t batch) {
  const std::string name = fmt::format("{} decode batch {} context {}", group, batch, kContext);
  bench.run(name, [&] {
    for (std::uint32_t row = 0; row < batch; ++row) driver.prefill(row, kContext, kContext);
    const std::vector<engine::StepSequence> step = driver.decode_step(batch);
    std::vector<double> host;
    const double seconds = median_seconds(kDecodeSteps, [&] { host.push_back(driver.decode(step)); });
    const std::uint64_t bytes = decode_bytes(driver.engine(), batch);
    bench.report.add({.name = name, .metric = "rate", .value = batch / seconds, .unit = "tokens/s"});
    bench.report.add({.name = name, .metric = "time a step", .value = seconds * 1e6, .unit = "us"});
    bench.report.add(
        {.name = name, .metric = "host time before the wait", .value = median(host) * 1e6, .unit = "us"});
    bench.add_read(name + ", weights and KV", bytes, seconds);
  });
}

}  // namespace

void measure_engine(Bench& bench, const std::string& model) {
  std::filesystem::path folder(model);
  if (!folder.has_filename()) folder = folder.parent_path();
  const std::string group = "engine " + folder.filename().string();
  if (!bench.wants(group) && !bench.only.starts_with(group)) return;
  const auto start = Steady::now();
  Driver driver(bench.device.gpu(), model);
  const double seconds = seconds_since(start);
  if (bench.wants(group + " load")) {
    const std::uint64_t bytes = driver.engine().weight_bytes();
    bench.report.add(
        {.name = group + " load",
         .metric = fmt::format("time at {:.3g} GB/s", static_cast<double>(bytes) / seconds / 1e9),
         .value = seconds,
         .unit = "s",
         .bytes_moved = bytes});
  }
  for (const std::uint32_t chunk : {2048U, 512U}) measure_prefill(bench, driver, group, chunk);
  measure_extension(bench, driver, group);
  for (const std::uint32_t batch : {1U, kBatch}) measure_decode(bench, driver, group, batch);
}

void measure_shared_prefix(Bench& bench, const std::string& model) {
  std::filesystem::path folder(model);
  if (!folder.has_filename()) folder = folder.parent_path();
  const std::string group = "prefix " + folder.filename().string();
  for (const std::uint32_t max_batch_tokens : {512U, 2048U}) {
    bench.run(group, [&] {
      SharedPrefix(bench.device.gpu(), model, {.max_batch_tokens = max_batch_tokens})
          .measure(bench.report, group);
    });
  }
}

}  // namespace metrale::bench
