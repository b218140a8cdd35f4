// SPDX-License-Identifier: Apache-2.0
// What the prefix cache saves: time to the first token of prompts of which a beginning is cached (warm) or is
// not (cold), by turns in one engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/clock.h>
#include <metrale/base/error.h>
#include <metrale/engine/engine.h>

#include "support/report.h"

namespace metrale::bench {

struct SharedPrefixCase {
  std::uint32_t shared = 2048;  // tokens
  std::uint32_t own = 32;
  std::uint32_t max_batch_tokens = 512;
  unsigned runs = 7;
};

class SharedPrefix {
 public:
  SharedPrefix(gpu::GpuBackend& gpu, const std::string& model, const SharedPrefixCase& what)
      : what_(what), engine_(gpu, model, options(what), clock_) {}

  void measure(Report& report, const std::string& group) {
    const std::vector<std::int32_t> shared = tokens(what_.shared);
    (void)ttft(shared);
    (void)ttft(tokens(what_.shared));
    std::vector<double> cold;
    std::vector<double> warm;
    std::vector<double> ratios;
    for (unsigned run = 0; run < what_.runs; ++run) {
      cold.push_back(ttft(tokens(what_.shared)));
      warm.push_back(ttft(shared));
      expects(last_.cached_tokens >= what_.shared, "the shared tokens were not in the cache");
      ratios.push_back(cold.back() / warm.back());
    }
    const std::string name = fmt::format("{} {} shared + {} own tokens, {} a step", group, what_.shared,
                                         what_.own, what_.max_batch_tokens);
    report.add({.name = name, .metric = "TTFT, nothing cached", .value = 1e3 * median(cold), .unit = "ms"});
    report.add(
        {.name = name, .metric = "TTFT, shared tokens cached", .value = 1e3 * median(warm), .unit = "ms"});
    report.add(
        {.name = name, .metric = "cold / warm, median of the pairs", .value = median(ratios), .unit = "x"});
  }

 private:
  static engine::EngineOptions options(const SharedPrefixCase& what) {
    engine::EngineOptions made;
    made.max_seq_len = what.shared + what.own + 16;
    made.max_batch_tokens = what.max_batch_tokens;
    made.max_batch_size = 4;
    made.compute = quant::ElementType::kBf16;
    made.prefix_caching = true;
    // Room for every cold prompt: nothing that is measured evicts.
    made.kv_blocks = (what.shared + what.own + 32) / made.block_size * (what.runs + 4);
    return made;
  }

  // Others in every call.
  std::vector<std::int32_t> tokens(std::uint32_t count) {
    std::vector<std::int32_t> made(count);
    for (std::int32_t& token : made) {
      state_ = state_ * 6364136223846793005U + 1442695040888963407U;
      token = static_cast<std::int32_t>((state_ >> 33) % (engine_.config().vocab_size - 1));
    }
    return made;
  }

  double ttft(std::vector<std::int32_t> prompt) {
    const std::vector<std::int32_t> own = tokens(what_.own);
    prompt.insert(prompt.end(), own.begin(), own.end());
    engine::Request request{.prompt = std::move(prompt), .max_new_tokens = 1, .ignore_eos = true};
    request.sampling.temperature = 0;
    const engine::RequestId id = engine_.submit(std::move(request));
    while (!engine_.idle()) (void)engine_.step();
    last_ = engine_.take_stats(id);
    return std::chrono::duration<double>(last_.ttft).count();
  }

  SharedPrefixCase what_;
  SteadyClock clock_;
  engine::Engine engine_;
  engine::RequestStats last_;
  std::uint64_t state_ = 1;
};

}  // namespace metrale::bench
