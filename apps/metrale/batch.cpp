// SPDX-License-Identifier: Apache-2.0
// metrale batch: a file of requests in, a file of results out. docs/batch.md has both formats and what a run
// that is interrupted leaves.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <metrale/base/clock.h>
#include <metrale/base/error.h>
#include <metrale/base/fd.h>

#include "batch_report.h"
#include "batch_run.h"
#include "commands.h"
#include "engine_flags.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "metrics_output.h"
#include "output.h"
#include "progress.h"
#include "request_flags.h"

namespace metrale::app {
namespace {

constexpr std::uint32_t kDefaultMaxSeqLen = 4096;

struct BatchFlags {
  std::string model;
  std::string input;
  std::string output;
  std::string order = "input";
  bool resume = false;
  bool overwrite = false;
  bool json = false;
  std::optional<std::uint32_t> max_in_flight;
  std::string chat_template;
  RequestFlags request;
  std::optional<std::uint32_t> max_seq_len;
  std::uint32_t max_batch_size = 16;
  std::uint32_t kv_blocks = 0;
  EngineFlags engine;
  bool no_graphs = false;
  MetricsFlags metrics;
  DeviceFlags device;
};

engine::EngineOptions engine_options(const BatchFlags& flags, const engine::ModelConfig& config) {
  engine::EngineOptions options;
  options.max_seq_len = flags.max_seq_len.value_or(std::min(config.max_positions(), kDefaultMaxSeqLen));
  options.max_batch_size = flags.max_batch_size;
  options.kv_blocks = flags.kv_blocks;
  apply_engine_flags(flags.engine, options);
  options.use_graphs = !flags.no_graphs;
  return options;
}

ExistingFile existing_file(const BatchFlags& flags) {
  expects(!flags.resume || !flags.overwrite, "give one of --resume and --overwrite");
  expects(!flags.output.empty() || (!flags.resume && !flags.overwrite),
          "--resume and --overwrite go with --output");
  if (flags.resume) return ExistingFile::kResume;
  return flags.overwrite ? ExistingFile::kOverwrite : ExistingFile::kRefuse;
}

// 0 where it is no regular file.
std::uint64_t size_of(int fd) {
  struct stat status{};
  const bool known = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  return known ? static_cast<std::uint64_t>(status.st_size) : 0;
}

double seconds_between(Nanoseconds begin, Nanoseconds end) {
  return std::chrono::duration<double>(end - begin).count();
}

void print(const BatchReport& report, const BatchFlags& flags) {
  const bool results_on_stdout = flags.output.empty();
  if (flags.json && !results_on_stdout) Output("").write(to_json_line(report));
  const bool json_here = flags.json && results_on_stdout;
  std::fputs((json_here ? to_json_line(report) : to_text(report)).c_str(), stderr);
}

// Loads the model and runs; the files are open and checked.
int run(const BatchFlags& flags, const runtime::Environment& environment, engine::EngineOptions options,
        const BatchSettings& settings, PromptEncoder& encoder, LineReader& input, ResultFile& results,
        IdTable& ids) {
  const SteadyClock clock;
  const auto backend = runtime::open_backend(backend_options(flags.device, environment));
  MetricsRegistry metrics;
  options.metrics = &metrics;
  const auto server = serve_metrics(flags.metrics, metrics);
  ProgressLine progress("loading");
  options.load.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
    return !interrupted();
  };
  const Nanoseconds load_begin = clock.now();
  engine::Engine engine(*backend, flags.model, options, clock);
  progress.clear();
  const Nanoseconds run_begin = clock.now();
  BatchRun batch(engine, encoder, input, results, ids, settings);
  batch.run();
  results.sync();
  const engine::EngineCounts counts = engine.counts();
  print({.totals = batch.totals(),
         .unknown_results = interrupted() ? 0 : ids.unmet_results(),
         .evicted_blocks = counts.prefix.evicted_blocks,
         .preemptions = counts.scheduler.preempted,
         .load_seconds = seconds_between(load_begin, run_begin),
         .wall_seconds = seconds_between(run_begin, clock.now()),
         .interrupted = interrupted(),
         .metrics = metrics.snapshot()},
        flags);
  engine.close();
  return interrupted() ? kInterrupted : kOk;
}

int batch(const BatchFlags& flags, const runtime::Environment& environment) {
  const ExistingFile existing = existing_file(flags);
  const engine::ModelConfig config = engine::load_model_config(flags.model);
  const std::optional<engine::Tokenizer> tokenizer = load_tokenizer(flags.model, /*needed=*/false);
  engine::EngineOptions options = engine_options(flags, config);
  options.tokenizer = tokenizer ? &*tokenizer : nullptr;
  const BatchSettings without_input{.defaults = request_without_prompt(flags.request, config.generation),
                                    .model = flags.model,
                                    .has_text = tokenizer.has_value(),
                                    .keeps_order = flags.order == "input",
                                    .max_in_flight = flags.max_in_flight.value_or(4 * flags.max_batch_size),
                                    .input_bytes = 0};
  sampling::validate(without_input.defaults.sampling, config.vocab_size);
  expects(without_input.defaults.stop.empty() || tokenizer,
          "--stop needs a model directory with a tokenizer.json");
  PromptEncoder encoder(flags.model, options.tokenizer, flags.chat_template);

  const bool from_stdin = flags.input == "-";
  const UniqueFd file = from_stdin ? UniqueFd() : open_for_reading(flags.input);
  const int input_fd = from_stdin ? STDIN_FILENO : file.get();
  LineReader input(input_fd, from_stdin ? "standard input" : flags.input, kMaxLineBytes);
  IdTable ids;
  ResultFile results(flags.output, existing, input_fd,
                     [&](const KnownResult& known) { ids.add_result(known.key); });
  BatchSettings settings = without_input;
  settings.input_bytes = size_of(input_fd);
  return run(flags, environment, options, settings, encoder, input, results, ids);
}

void add_flags(CLI::App& command, BatchFlags& flags) {
  command.add_option("-m,--model", flags.model, "Model directory (config.json, safetensors, tokenizer.json)")
      ->required();
  command.add_option("input", flags.input, "File of requests, one JSON object a line (- is standard input)")
      ->required();
  command.add_option("-o,--output", flags.output,
                     "Append results to a file, a line each as it is done (default: standard output)");
  command.add_option("--order", flags.order, "Results in the order of the input, or as they are finished")
      ->check(CLI::IsMember({"input", "finished"}))
      ->capture_default_str();
  command.add_flag("--resume", flags.resume, "Keep the results that the output file has and do the rest");
  command.add_flag("--overwrite", flags.overwrite, "Replace the output file");
  command.add_flag("--json", flags.json, "The summary as one JSON object on standard output");
  command
      .add_option("--max-in-flight", flags.max_in_flight,
                  "Most answers asked of the engine at a time (default: 4 for each of --max-batch-size)")
      ->check(CLI::Range(1U, 1U << 20));
  command.add_option("--chat-template", flags.chat_template,
                     "chatml, llama3, mistral, none or a Jinja file instead of the model's own");
  add_request_flags(command, flags.request);
  add_size_flags(command, "Longest sequence, prompt and answer (default: what the model takes, up to 4096)",
                 {flags.max_seq_len, flags.max_batch_size, flags.kv_blocks, flags.no_graphs});
  add_engine_flags(command, flags.engine);
  add_kv_calibration_flags(command, flags.engine);
  add_load_flags(command, flags.engine);
  add_prefix_caching_flag(command, flags.engine, /*by_default=*/true);
  add_compute_flags(command, flags.engine);
  add_metrics_flags(command, flags.metrics);
  add_device_flags(command, flags.device);
}

}  // namespace

Action add_batch(CLI::App& command, const runtime::Environment& environment) {
  const auto flags = std::make_shared<BatchFlags>();
  add_flags(command, *flags);
  return [flags, environment] { return batch(*flags, environment); };
}

}  // namespace metrale::app
