// SPDX-License-Identifier: Apache-2.0
#include "replay_flags.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::app {
namespace {

void add_limit_flags(CLI::App& command, ReplayFlags& flags) {
  add_size_flags(command, "Longest sequence, prompt and answer (default: what the trace needs)",
                 {flags.max_seq_len, flags.max_batch_size, flags.kv_blocks, flags.no_graphs});
  add_engine_flags(command, flags.engine);
  add_kv_calibration_flags(command, flags.engine);
  add_load_flags(command, flags.engine);
  add_prefix_caching_flag(command, flags.engine, /*by_default=*/true);
  add_compute_flags(command, flags.engine);
  add_device_flags(command, flags.device);
  add_metrics_flags(command, flags.metrics);
}

}  // namespace

void add_replay_flags(CLI::App& command, ReplayFlags& flags) {
  command.add_option("-m,--model", flags.model, "Model directory (config.json, safetensors)")->required();
  command.add_option("trace", flags.trace, "Trace to replay (- is standard input)")->required();
  command.add_option("-o,--output", flags.output,
                     "Write the report as JSON to a file, which appears when it is complete");
  command.add_option("--html", flags.html, "Write a timeline to a file: a page that needs nothing else");
  command.add_flag("--json", flags.json, "Print the report as JSON instead of a summary");
  command
      .add_option("--speed", flags.speed,
                  "Divide the trace's times by this; max: submit everything as soon as it may be")
      ->capture_default_str();
  command.add_flag("--verify", flags.verify,
                   "Compute every answer again, alone and without the prefix cache, and compare");
  add_limit_flags(command, flags);
}

double parse_speed(const std::string& text) {
  if (text == "max") return 0;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  constexpr double kMost = 1e9;
  const bool ok = error == std::errc{} && end == text.data() + text.size() && value >= 0 && value <= kMost;
  if (!ok || (value != 0 && value < 1 / kMost))
    throw InvalidArgument(fmt::format("--speed: '{}' is neither a number above 0 nor max", text));
  return value;
}

engine::EngineOptions engine_options(const ReplayFlags& flags, const engine::ModelConfig& config,
                                     const replay::Trace& trace) {
  if (trace.vocab > config.vocab_size) {
    throw InvalidArgument(fmt::format("the trace has token ids below {}, the model below {} only",
                                      trace.vocab, config.vocab_size));
  }
  const std::vector<std::uint64_t> prompts = replay::longest_prompts(trace.requests);
  std::uint64_t longest = 2;
  std::uint64_t longest_id = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::uint64_t tokens = prompts[i] + trace.requests[i].max_tokens;
    if (tokens > longest) longest_id = trace.requests[i].id;
    longest = std::max(longest, tokens);
  }
  const std::uint64_t limit = flags.max_seq_len.value_or(config.max_positions());
  if (longest > limit) {
    throw InvalidArgument(fmt::format("request {} may get {} tokens long, prompt and answer; {} is {}",
                                      longest_id, longest,
                                      flags.max_seq_len ? "--max-seq-len" : "what the model takes", limit));
  }
  engine::EngineOptions options;
  options.max_seq_len = flags.max_seq_len.value_or(static_cast<std::uint32_t>(longest));
  options.max_batch_size = flags.max_batch_size;
  options.kv_blocks = flags.kv_blocks;
  apply_engine_flags(flags.engine, options);
  options.use_graphs = !flags.no_graphs;
  if (flags.kv_blocks != 0 && longest > std::uint64_t{flags.kv_blocks} * options.block_size) {
    throw InvalidArgument(fmt::format("request {} may get {} tokens long; --kv-blocks {} holds {}",
                                      longest_id, longest, flags.kv_blocks,
                                      std::uint64_t{flags.kv_blocks} * options.block_size));
  }
  return options;
}

}  // namespace metrale::app
