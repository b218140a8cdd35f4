// SPDX-License-Identifier: Apache-2.0
// An engine over a model directory on the backend under test, and logits of whole token sequences through its
// decoder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include <metrale/base/checked.h>
#include <metrale/base/clock.h>
#include <metrale/engine/engine.h>
#include <metrale/gpu/backend.h>

namespace metrale::test {

using Tokens = std::vector<std::int32_t>;

// The backend that this program's engines run on, with the product's kernels; each program of engine tests
// defines it. `threads` is for the CPU.
[[nodiscard]] std::unique_ptr<gpu::GpuBackend> make_backend(unsigned threads = 2,
                                                            std::uint64_t max_memory_bytes = 0);

// Whether it serves KV formats beside bf16 and fp32.
[[nodiscard]] bool serves_every_kv_format();

// How the logits of some sequences are computed: none of it may show in them.
struct RunPlan {
  // Most tokens of a sequence, by its index, that the next step takes; 0 leaves it out of that step.
  std::function<std::size_t(std::size_t)> chunk;
  // Changes which block holds what. Empty: in the order of allocation.
  std::function<void(std::vector<BlockId>&)> order_blocks;
};

class EngineHarness {
 public:
  explicit EngineHarness(const std::string& directory, const engine::EngineOptions& options = {},
                         unsigned threads = 2)
      : EngineHarness(directory, options, make_backend(threads)) {}
  EngineHarness(const std::string& directory, const engine::EngineOptions& options,
                std::unique_ptr<gpu::GpuBackend> gpu)
      : gpu_(std::move(gpu)), engine_(std::make_unique<engine::Engine>(*gpu_, directory, options, clock_)) {}

  [[nodiscard]] engine::Engine& engine() { return *engine_; }
  [[nodiscard]] gpu::GpuBackend& gpu() { return *gpu_; }

  // Logits at every position of each sequence, run together as `plan` says.
  std::vector<std::vector<float>> logits(std::span<const Tokens> sequences, const RunPlan& plan) {
    engine::Decoder& decoder = engine_->decoder();
    std::vector<BlockId> pool;
    for (const Tokens& sequence : sequences) {
      for (std::size_t at = 0; at < sequence.size(); at += engine_->limits().block_size) {
        pool.push_back(engine_->cache().alloc_block());
      }
    }
    if (plan.order_blocks) plan.order_blocks(pool);
    std::span<const BlockId> free = pool;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const std::size_t count = ceil_div<std::size_t>(sequences[s].size(), engine_->limits().block_size);
      decoder.set_blocks(static_cast<std::uint32_t>(s), 0, free.first(count));
      free = free.subspan(count);
    }
    std::vector<std::vector<float>> result(sequences.size());
    std::vector<std::size_t> done(sequences.size(), 0);
    while (step(sequences, plan, done, result)) {
    }
    engine_->cache().free_blocks(pool);
    return result;
  }

  // Each step takes at most `chunk` tokens of every sequence that has some left.
  std::vector<std::vector<float>> logits(std::span<const Tokens> sequences, std::size_t chunk) {
    return logits(sequences, RunPlan{.chunk = [chunk](std::size_t) { return chunk; }, .order_blocks = {}});
  }

  std::vector<float> logits_alone(const Tokens& sequence, std::size_t chunk) {
    return logits(std::span(&sequence, 1), chunk).front();
  }

  // The output tokens of each request, all submitted at once.
  std::vector<Tokens> generate(std::vector<engine::Request> requests) {
    std::vector<engine::RequestId> ids;
    for (engine::Request& request : requests) ids.push_back(engine_->submit(std::move(request)));
    std::vector<Tokens> outputs(ids.size());
    while (!engine_->idle()) {
      for (const engine::StepEvent& event : engine_->step()) {
        const auto at = static_cast<std::size_t>(std::ranges::find(ids, event.request) - ids.begin());
        if (event.token) outputs[at].push_back(*event.token);
      }
    }
    return outputs;
  }

 private:
  // False where every sequence is done. Sequences that the plan leaves out of a step wait for a later one.
  bool step(std::span<const Tokens> sequences, const RunPlan& plan, std::vector<std::size_t>& done,
            std::vector<std::vector<float>>& result) {
    std::vector<engine::StepSequence> batch;
    std::vector<std::size_t> members;
    std::size_t rows = engine_->decoder().max_logit_rows();
    std::size_t budget = engine_->limits().max_batch_tokens;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const std::size_t length = std::min({plan.chunk(s), sequences[s].size() - done[s], rows, budget});
      if (length == 0) continue;
      batch.push_back({.table_row = static_cast<std::uint32_t>(s),
                       .start = static_cast<std::uint32_t>(done[s]),
                       .tokens = std::span(sequences[s]).subspan(done[s], length),
                       .logit_rows = static_cast<std::uint32_t>(length)});
      members.push_back(s);
      rows -= length;
      budget -= length;
    }
    if (batch.empty()) {
      const auto is_done = [&](std::size_t s) { return done[s] == sequences[s].size(); };
      return !std::ranges::all_of(std::views::iota(std::size_t{0}, sequences.size()), is_done);
    }
    engine_->decoder().run(batch);
    std::span<const float> logits = engine_->decoder().read_logits();
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::size_t count = batch[i].tokens.size() * engine_->config().vocab_size;
      auto& own = result[members[i]];
      own.insert(own.end(), logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(count));
      logits = logits.subspan(count);
      done[members[i]] += batch[i].tokens.size();
    }
    return true;
  }

  SteadyClock clock_;
  std::unique_ptr<gpu::GpuBackend> gpu_;
  std::unique_ptr<engine::Engine> engine_;
};

// Bit for bit, so that NaN equals itself and -0 differs from 0.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace metrale::test
