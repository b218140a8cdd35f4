// SPDX-License-Identifier: Apache-2.0
// metrale score: log-likelihood and perplexity of a text, or of a continuation given a prompt.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/clock.h>
#include <metrale/base/error.h>
#include <metrale/engine/scoring.h>
#include <metrale/engine/tokenizer.h>

#include "commands.h"
#include "engine_flags.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "prompts.h"
#include "score_texts.h"

namespace metrale::app {
namespace {

using nlohmann::ordered_json;

constexpr std::uint32_t kDefaultWindow = 2048;

struct ScoreFlags {
  std::string model;
  std::string file;
  std::optional<std::string> prompt;
  std::optional<std::string> continuation;
  std::optional<std::uint32_t> window;
  std::optional<std::uint32_t> stride;
  std::uint32_t max_windows = 0;
  bool no_special_tokens = false;
  bool json = false;
  bool per_token = false;
  bool no_reference = false;
  std::string output;
  EngineFlags engine;
  DeviceFlags device;
};

// What is scored, cut into windows; a pair is one window.
struct Job {
  std::vector<std::int32_t> tokens;
  std::vector<engine::ScoreWindow> windows;
  std::uint32_t window = 0;
  std::uint32_t stride = 0;
};

struct Totals {
  std::uint64_t scored = 0;
  std::uint64_t greedy = 0;
  double log_likelihood = 0;
  // Beside the model with a BF16 cache.
  bool has_reference = false;
  double divergence = 0;
  std::uint64_t same_top = 0;

  [[nodiscard]] double mean_divergence() const { return divergence / static_cast<double>(scored); }
  [[nodiscard]] double same_top_share() const {
    return static_cast<double>(same_top) / static_cast<double>(scored);
  }
  [[nodiscard]] double perplexity() const { return std::exp(-log_likelihood / static_cast<double>(scored)); }
};

std::string line(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Job text_job(const ScoreFlags& flags, const engine::ModelConfig& config, const engine::Tokenizer& tokenizer) {
  const std::string text = read_source(flags.file);
  const std::string name = flags.file == "-" ? "standard input" : fmt::format("'{}'", flags.file);
  if (text.empty()) throw InvalidArgument(fmt::format("--file: {} is empty", name));
  Job job;
  job.window = flags.window.value_or(std::min(kDefaultWindow, config.max_positions()));
  job.stride = flags.stride.value_or(job.window);
  if (job.window > config.max_positions()) {
    throw InvalidArgument(fmt::format("--window {} is beyond the {} positions of the model", job.window,
                                      config.max_positions()));
  }
  job.tokens = tokenizer.encode(text, {.add_special_tokens = !flags.no_special_tokens});
  try {
    job.windows = engine::score_windows(job.tokens.size(), job.window, job.stride, flags.max_windows);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", name, error.what()));
  }
  return job;
}

Job pair_job(const ScoreFlags& flags, const engine::ModelConfig& config, const engine::Tokenizer& tokenizer) {
  const PromptAndContinuation pair = encode_pair(tokenizer, config, flags.prompt.value_or(""),
                                                 flags.continuation.value_or(""), !flags.no_special_tokens);
  if (pair.tokens.size() - 1 > config.max_positions()) {
    throw InvalidArgument(fmt::format("--prompt and --continuation have {} tokens; the model takes {}",
                                      pair.tokens.size(), config.max_positions()));
  }
  Job job{.tokens = pair.tokens, .windows = {}};
  job.windows = {{0, pair.first_target, pair.tokens.size()}};
  return job;
}

Job make_job(const ScoreFlags& flags, const engine::ModelConfig& config, const engine::Tokenizer& tokenizer) {
  const bool is_pair = flags.prompt.has_value() || flags.continuation.has_value();
  if (is_pair == !flags.file.empty()) throw InvalidArgument("give --file, or --prompt and --continuation");
  if (!is_pair) return text_job(flags, config, tokenizer);
  expects(flags.prompt && flags.continuation, "--prompt and --continuation go together");
  expects(!flags.window && !flags.stride && flags.max_windows == 0,
          "--window, --stride and --max-windows go with --file");
  return pair_job(flags, config, tokenizer);
}

engine::EngineOptions engine_options(const ScoreFlags& flags, const Job& job) {
  std::size_t longest = 0;
  for (const engine::ScoreWindow& window : job.windows) {
    longest = std::max(longest, window.end - window.begin - 1);
  }
  engine::EngineOptions options;
  options.max_seq_len = static_cast<std::uint32_t>(longest);
  options.max_batch_size = 1;
  apply_engine_flags(flags.engine, options);
  return options;
}

ordered_json summary(const ScoreFlags& flags, const Job& job, const Totals& totals) {
  ordered_json json{{"model", flags.model}, {"tokens", job.tokens.size()}};
  if (flags.prompt) {
    json["prompt_tokens"] = job.windows.front().first_target;
    json["is_greedy"] = totals.greedy == totals.scored;
  } else {
    json["windows"] = job.windows.size();
    json["window"] = job.window;
    json["stride"] = job.stride;
  }
  json["scored_tokens"] = totals.scored;
  json["greedy_tokens"] = totals.greedy;
  json["log_likelihood"] = totals.log_likelihood;
  json["perplexity"] = totals.perplexity();
  if (totals.has_reference) {
    json["mean_kl_divergence"] = totals.mean_divergence();
    json["same_top"] = totals.same_top_share();
  }
  return json;
}

std::string summary_text(const ScoreFlags& flags, const Job& job, const Totals& totals) {
  std::string text;
  if (flags.prompt) {
    text += fmt::format("tokens          {} of the prompt, {} of the continuation\n",
                        job.windows.front().first_target, totals.scored);
    text += fmt::format("greedy          {}\n", totals.greedy == totals.scored ? "yes" : "no");
  } else {
    text += fmt::format("tokens          {}, {} of them scored\n", job.tokens.size(), totals.scored);
    text += fmt::format("windows         {} of {} tokens, {} apart\n", job.windows.size(), job.window,
                        job.stride);
  }
  text += fmt::format("log-likelihood  {:.6f}\n", totals.log_likelihood);
  text += fmt::format("perplexity      {:.6f}\n", totals.perplexity());
  if (totals.has_reference) {
    text +=
        fmt::format("KL divergence   {:.6f} nats a token from the bf16 cache\n", totals.mean_divergence());
    text += fmt::format("same top token  {:.3f} %\n", 100 * totals.same_top_share());
  }
  return text;
}

// A cache in another format than bf16 is.
bool is_compared(const engine::Engine& engine, const ScoreFlags& flags) {
  if (flags.no_reference) return false;
  for (std::uint32_t i = 0; i < engine.cache().num_layers(); ++i) {
    const auto dtype = engine.cache().dtype_for_layer(LayerId(static_cast<LayerId::Value>(i)));
    if (dtype != quant::KvDtype{}) return true;
  }
  return false;
}

// Scores every window in order, writing a line a token where asked.
Totals run_job(engine::Engine& engine, const Job& job, const engine::Tokenizer& tokenizer,
               const ScoreFlags& flags, Output& output) {
  std::optional<engine::Bf16Reference> reference;
  if (is_compared(engine, flags)) reference.emplace(engine);
  engine::Scorer scorer(engine, reference ? &*reference : nullptr);
  Totals totals;
  totals.has_reference = reference.has_value();
  for (const engine::ScoreWindow& window : job.windows) {
    const auto tokens = std::span(job.tokens).subspan(window.begin, window.end - window.begin);
    const auto scores =
        scorer.score(tokens, window.first_target - window.begin, [] { return !interrupted(); });
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const engine::TokenScore& score = scores[i];
      totals.log_likelihood += score.log_prob;
      totals.greedy += score.is_greedy() ? 1 : 0;
      totals.divergence += score.divergence;
      totals.same_top += score.greedy == score.reference_greedy ? 1 : 0;
      if (!flags.per_token) continue;
      const bool has_text = static_cast<std::size_t>(score.token) < tokenizer.vocab_size();
      ordered_json json{{"index", window.first_target + i},
                        {"token", score.token},
                        {"text", has_text ? tokenizer.token_bytes(score.token) : ""},
                        {"log_prob", score.log_prob},
                        {"is_greedy", score.is_greedy()}};
      if (reference) json["kl_divergence"] = score.divergence;
      output.write(line(json));
    }
    totals.scored += scores.size();
  }
  return totals;
}

int score(const ScoreFlags& flags, const runtime::Environment& environment) {
  const SteadyClock clock;
  const engine::ModelConfig config = engine::load_model_config(flags.model);
  const engine::Tokenizer tokenizer =
      engine::Tokenizer::load((std::filesystem::path(flags.model) / "tokenizer.json").string());
  const Job job = make_job(flags, config, tokenizer);
  engine::EngineOptions options = engine_options(flags, job);
  Output output(flags.output);
  const auto backend = runtime::open_backend(backend_options(flags.device, environment));

  ProgressLine progress("loading");
  options.load.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
    return !interrupted();
  };
  engine::Engine engine(*backend, flags.model, options, clock);
  progress.clear();
  const Totals totals = run_job(engine, job, tokenizer, flags, output);
  engine.close();
  const bool as_json = flags.json || flags.per_token;
  output.write(as_json ? line(summary(flags, job, totals)) : summary_text(flags, job, totals));
  output.commit();
  return kOk;
}

}  // namespace

Action add_score(CLI::App& command, const runtime::Environment& environment) {
  const auto flags = std::make_shared<ScoreFlags>();
  command
      .add_option("-m,--model,model", flags->model,
                  "Model directory (config.json, safetensors, tokenizer.json)")
      ->required();
  command.add_option("-f,--file", flags->file, "Text to score (- is standard input)");
  command.add_option("-p,--prompt", flags->prompt, "Text before the continuation, not scored itself");
  command.add_option("--continuation", flags->continuation, "Text to score after the prompt");
  command
      .add_option("--window", flags->window,
                  "Tokens that are run together (default: 2048, or what the model takes)")
      ->check(CLI::Range(2U, 1U << 30));
  command.add_option("--stride", flags->stride, "Tokens from one window to the next (default: the window)")
      ->check(CLI::Range(1U, 1U << 30));
  command.add_option("--max-windows", flags->max_windows, "Score the first n windows only (0: all)")
      ->capture_default_str();
  command.add_flag("--no-special-tokens", flags->no_special_tokens,
                   "Leave out what the tokenizer puts around a text, such as BOS");
  command.add_flag("--json", flags->json, "One JSON object");
  command.add_flag("--per-token", flags->per_token,
                   "One JSON object a scored token, and the summary as the last");
  command.add_flag("--no-reference", flags->no_reference,
                   "Do not compare with a bf16 cache where the KV cache has another format");
  command.add_option("-o,--output", flags->output, "Write to a file, which appears when it is complete");
  add_engine_flags(command, flags->engine);
  add_kv_calibration_flags(command, flags->engine);
  add_load_flags(command, flags->engine);
  add_compute_flags(command, flags->engine);
  add_device_flags(command, flags->device);
  return [flags, environment] { return score(*flags, environment); };
}

}  // namespace metrale::app
