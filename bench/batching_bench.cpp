// SPDX-License-Identifier: Apache-2.0
// bench-deps: engine runtime
// Continuous batching on the CPU: what a cached prefix saves on the demo model, what cancellations cost on a
// pool that is too small, and what a block costs.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/clock.h>
#include <metrale/base/cpu_set.h>
#include <metrale/base/error.h>
#include <metrale/engine/engine.h>
#include <metrale/engine/synthetic_model.h>
#include <metrale/kv/block_pool.h>
#include <metrale/runtime/runtime.h>

#include "support/report.h"
#include "support/shared_prefix.h"

namespace metrale {
namespace {

constexpr const char* kModel = "build/models/smollm2-135m-instruct";
constexpr unsigned kThreads = 2;
constexpr std::size_t kRequests = 10'000;
constexpr std::uint32_t kOvertakes = 64;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint32_t below(std::uint32_t bound) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>((state_ >> 33) % bound);
  }

 private:
  std::uint64_t state_;
};

// A tiny model in a folder that goes away with it.
class TinyModel {
 public:
  TinyModel() {
    engine::write_synthetic_model(path_, {},
                                  {.max_shard_bytes = std::uint64_t{1} << 30, .threads = 1, .progress = {}});
  }
  ~TinyModel() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ =
      (std::filesystem::temp_directory_path() / fmt::format("metrale-batching-{}", ::getpid())).string();
};

struct Load {
  double seconds = 0;
  std::uint64_t delivered = 0;  // tokens
  std::uint64_t completed = 0;  // requests that were not cancelled
  engine::EngineCounts counts;
};

engine::Request make_request(Random& random, const std::vector<std::vector<std::int32_t>>& systems) {
  engine::Request request;
  request.prompt = systems[random.below(static_cast<std::uint32_t>(systems.size()))];
  for (std::uint32_t own = 1 + random.below(40); own > 0; --own) {
    request.prompt.push_back(static_cast<std::int32_t>(random.below(256)));
  }
  request.max_new_tokens = 8 + random.below(40);
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.priority = static_cast<std::int32_t>(random.below(3));
  return request;
}

// 10,000 requests, 256 of them in flight, on a pool for about six of sixteen rows. Of those that shall be
// cancelled each is after a random number of its tokens, also before the first.
Load run_load(gpu::GpuBackend& gpu, const std::string& model, std::uint32_t cancel_percent) {
  engine::EngineOptions options;
  options.max_seq_len = 256;
  options.max_batch_size = 16;
  options.max_batch_tokens = 256;
  options.kv_blocks = 60;
  options.max_overtakes = kOvertakes;
  options.prefix_caching = true;
  const SteadyClock clock;
  engine::Engine engine(gpu, model, options, clock);
  Random random(7);
  Random choice(8);
  std::vector<std::vector<std::int32_t>> systems(8);
  for (auto& system : systems) {
    for (std::uint32_t i = 0; i < 64; ++i) system.push_back(static_cast<std::int32_t>(random.below(256)));
  }
  std::map<engine::RequestId, std::uint32_t> left;  // tokens before its cancellation
  std::size_t submitted = 0;
  std::size_t in_flight = 0;
  Load load;
  const Nanoseconds begin = clock.now();
  while (submitted < kRequests || in_flight > 0) {
    for (; in_flight < 256 && submitted < kRequests; ++in_flight, ++submitted) {
      engine::Request request = make_request(random, systems);
      const std::uint32_t tokens = request.max_new_tokens;
      const engine::RequestId id = engine.submit(std::move(request));
      if (choice.below(100) >= cancel_percent) continue;
      if (const std::uint32_t after = choice.below(tokens); after == 0) {
        engine.cancel(id);
      } else {
        left[id] = after;
      }
    }
    for (const engine::StepEvent& event : engine.step()) {
      if (event.token) {
        ++load.delivered;
        if (const auto found = left.find(event.request); found != left.end() && --found->second == 0) {
          engine.cancel(event.request);
        }
      }
      if (!event.request_finished) continue;
      --in_flight;
      (void)engine.take_stats(event.request);
      if (event.finished != engine::FinishReason::kCancelled) ++load.completed;
    }
  }
  load.seconds = std::chrono::duration<double>(clock.now() - begin).count();
  load.counts = engine.counts();
  expects(load.counts.held_blocks == 0, "blocks are still held");
  expects(engine.scheduler().check_invariants().empty(), "blocks are not accounted for");
  expects(load.counts.scheduler.most_overtaken <= kOvertakes, "a request was overtaken too often");
  return load;
}

void measure_cancellations(bench::Report& report, gpu::GpuBackend& gpu) {
  const TinyModel model;
  std::vector<double> rates[2];
  std::vector<double> ratios;
  Load last[2];
  for (int run = 0; run < 5; ++run) {
    for (const bool cancels : {false, true}) {
      last[cancels ? 1 : 0] = run_load(gpu, model.path(), cancels ? 20 : 0);
      const Load& load = last[cancels ? 1 : 0];
      rates[cancels ? 1 : 0].push_back(static_cast<double>(load.delivered) / load.seconds);
    }
    ratios.push_back(rates[1].back() / rates[0].back());
  }
  const std::string name = "10,000 requests on 60 blocks, tiny model";
  report.add(
      {.name = name, .metric = "delivered tokens", .value = bench::median(rates[0]), .unit = "tokens/s"});
  report.add({.name = name + ", 20 % cancelled at a random token",
              .metric = "delivered tokens",
              .value = bench::median(rates[1]),
              .unit = "tokens/s",
              .share_of_limit = bench::median(ratios),
              .limit = "without cancellations, median of the pairs"});
  for (const bool cancels : {false, true}) {
    const Load& load = last[cancels ? 1 : 0];
    const std::string which = name + (cancels ? ", 20 % cancelled at a random token" : "");
    const auto add = [&](const char* metric, double value, const char* unit) {
      report.add({.name = which, .metric = metric, .value = value, .unit = unit});
    };
    add("requests completed", static_cast<double>(load.completed), "");
    add("blocks held at the end", static_cast<double>(load.counts.held_blocks), "");
    add("preemptions", static_cast<double>(load.counts.scheduler.preempted), "");
    add("evicted blocks", static_cast<double>(load.counts.prefix.evicted_blocks), "");
    add("prompt tokens from the cache",
        100.0 * static_cast<double>(load.counts.scheduler.cached_tokens) /
            static_cast<double>(load.counts.scheduler.cached_tokens + load.counts.scheduler.computed_tokens -
                                load.counts.output_tokens),
        "%");
    add("most times that a request was overtaken (bound: 64)", load.counts.scheduler.most_overtaken, "");
  }
}

void measure_pool(bench::Report& report) {
  constexpr std::uint32_t kBlocks = 1'000'000;
  kv::BlockPool pool(kBlocks);
  std::vector<BlockId> taken;
  taken.reserve(kBlocks);
  const double seconds = bench::median_seconds(7, [&] {
    taken.clear();
    for (std::uint32_t i = 0; i < kBlocks; ++i) taken.push_back(*pool.try_alloc());
    for (const BlockId block : taken) pool.dec_ref(block);
  });
  report.add({.name = "block pool of a million blocks",
              .metric = "alloc + free",
              .value = seconds / kBlocks * 1e9,
              .unit = "ns"});
}

int run(int argc, char** argv) {
  bench::Report report(
      "batching",
      fmt::format("CPU backend, {} threads on a CPU each; TTFT: SmolLM2-135M-Instruct in BF16, "
                  "medians of 7 pairs; requests: medians of 5 pairs",
                  kThreads),
      argc, argv);
  measure_pool(report);
  const auto gpu = runtime::open_backend({.threads = kThreads, .cpus = usable_cpus()});
  bench::SharedPrefix(*gpu, kModel, {}).measure(report, "SmolLM2-135M");
  measure_cancellations(report, *gpu);
  report.write();
  return 0;
}

}  // namespace
}  // namespace metrale

int main(int argc, char** argv) {
  try {
    return metrale::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "batching: %s\n", error.what());
    return 1;
  }
}
