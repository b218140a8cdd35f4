// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_metrics.h"

namespace metrale::engine {
namespace {

constexpr std::array kSeconds{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                              0.25,   0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0};
constexpr std::array kTokens{1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0};

std::array<Counter*, 5> outcomes(MetricsRegistry& registry) {
  std::array<Counter*, 5> counters{};
  for (std::size_t i = 0; i < counters.size(); ++i) {
    counters[i] = &registry.counter("metrale_answers_total", "Answers that ended, by why",
                                    {{"outcome", std::string(to_string(static_cast<FinishReason>(i)))}});
  }
  return counters;
}

Gauge& blocks(MetricsRegistry& registry, const char* state) {
  return registry.gauge("metrale_kv_blocks",
                        "KV blocks: free, in the prefix cache, held by running sequences (some are in both)",
                        {{"state", state}});
}

}  // namespace

Engine::Metrics::Metrics(MetricsRegistry& registry)
    : finished(outcomes(registry)),
      prompt_tokens(registry.counter("metrale_prompt_tokens_total", "Tokens of submitted prompts")),
      generated_tokens(registry.counter("metrale_generated_tokens_total", "Tokens of all answers")),
      lookup_tokens(registry.counter("metrale_prefix_lookup_tokens_total",
                                     "Tokens that the prefix cache was asked for")),
      hit_tokens(registry.counter("metrale_prefix_hit_tokens_total",
                                  "Tokens that the prefix cache had, in full blocks")),
      preemptions(registry.counter("metrale_preemptions_total", "Running sequences that had to give way")),
      evicted_blocks(
          registry.counter("metrale_evicted_blocks_total", "Blocks evicted from the prefix cache")),
      running(registry.gauge("metrale_sequences_running", "Sequences that run")),
      waiting(registry.gauge("metrale_sequences_waiting", "Sequences that wait")),
      free_blocks(blocks(registry, "free")),
      cached_blocks(blocks(registry, "cached")),
      held_blocks(blocks(registry, "held")),
      ttft(registry.histogram("metrale_ttft_seconds", "Submit to the first token", kSeconds)),
      inter_token(
          registry.histogram("metrale_inter_token_seconds", "One token of an answer to its next", kSeconds)),
      queue(registry.histogram("metrale_queue_seconds", "Submit to the first step", kSeconds)),
      step_time(registry.histogram("metrale_step_seconds", "One step", kSeconds)),
      step_size(registry.histogram("metrale_step_tokens", "Tokens that a step computed", kTokens)) {}

void Engine::Metrics::update(const EngineCounts& counts, double step_seconds, std::size_t step_tokens) {
  prompt_tokens.add(counts.prompt_tokens - last_.prompt_tokens);
  generated_tokens.add(counts.output_tokens - last_.output_tokens);
  lookup_tokens.add(counts.prefix.lookup_tokens - last_.prefix.lookup_tokens);
  hit_tokens.add(counts.prefix.hit_tokens - last_.prefix.hit_tokens);
  preemptions.add(counts.scheduler.preempted - last_.scheduler.preempted);
  evicted_blocks.add(counts.prefix.evicted_blocks - last_.prefix.evicted_blocks);
  running.set(static_cast<double>(counts.running));
  waiting.set(static_cast<double>(counts.waiting));
  free_blocks.set(static_cast<double>(counts.free_blocks));
  cached_blocks.set(static_cast<double>(counts.cached_blocks));
  held_blocks.set(static_cast<double>(counts.held_blocks));
  if (step_tokens > 0) {
    step_time.observe(step_seconds);
    step_size.observe(static_cast<double>(step_tokens));
  }
  last_ = counts;
}

}  // namespace metrale::engine
