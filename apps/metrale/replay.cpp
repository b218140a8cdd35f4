// SPDX-License-Identifier: Apache-2.0
// metrale replay: a trace on an engine, and how long everything took.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/clock.h>
#include <metrale/base/error.h>
#include <metrale/base/log.h>
#include <metrale/engine/engine.h>

#include "commands.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "prompts.h"
#include "replay/replayer.h"
#include "replay/summary.h"
#include "replay/timeline.h"
#include "replay_flags.h"

namespace metrale::app {
namespace {

std::unique_ptr<engine::Engine> load(gpu::GpuBackend& backend, const ReplayFlags& flags,
                                     engine::EngineOptions options, const Clock& clock) {
  ProgressLine progress("loading");
  options.load.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
    return !interrupted();
  };
  return std::make_unique<engine::Engine>(backend, flags.model, options, clock);
}

replay::Conditions conditions(const ReplayFlags& flags, const replay::Trace& trace,
                              const engine::Engine& engine, std::string_view device) {
  return {.model = flags.model,
          .trace = flags.trace,
          .note = trace.note,
          .speed = parse_speed(flags.speed),
          .device = std::string(device),
          .compute = std::string(quant::to_string(engine.compute())),
          .kv_dtype = quant::to_string(engine.cache().dtype()),
          .limits = engine.limits(),
          .kv_blocks = engine.cache().num_blocks(),
          .prefix_caching = flags.engine.prefix_caching,
          .fast = flags.engine.fast};
}

replay::ReplayOptions replay_options(const ReplayFlags& flags, ProgressLine& progress) {
  return {.speed = parse_speed(flags.speed),
          .interrupted = [] { return interrupted(); },
          .progress =
              [&progress](const replay::ReplayProgress& now) {
                progress.show([&] {
                  return fmt::format("{} of {} requests, {} running, {} waiting", now.ended, now.total,
                                     now.running, now.waiting);
                });
              }};
}

// On an engine of its own, which runs one sequence at a time and shares nothing. None where a signal ends it:
// the replay's figures stand without.
std::optional<replay::Verification> verify_alone(gpu::GpuBackend& backend, const ReplayFlags& flags,
                                                 engine::EngineOptions options, const replay::Trace& trace,
                                                 const replay::ReplayRecord& record) {
  const SteadyClock clock;
  options.max_batch_size = 1;
  options.kv_blocks = 0;
  options.prefix_caching = false;
  options.metrics = nullptr;
  try {
    const std::unique_ptr<engine::Engine> engine = load(backend, flags, options, clock);
    ProgressLine progress("verifying");
    const replay::Verification result =
        replay::verify(*engine, trace, record, replay_options(flags, progress));
    engine->close();
    return result;
  } catch (const Cancelled&) {
    return std::nullopt;
  }
}

// What the exit code says about a replay that came to its end.
void check_outcome(const replay::Report& report) {
  if (report.verification && report.verification->different_answers > 0)
    throw Error("replay: " + report.verification->first_difference + " when it is computed alone");
  if (report.summary.without_logits > 0)
    throw DeviceError("replay", 0, "a request ended because no token had a finite logit");
}

// Files that are written take the place of those of the same name.
void check_files(const ReplayFlags& flags) {
  const std::string trace = flags.trace == "-" ? "/dev/stdin" : flags.trace;
  for (const auto& [flag, path] : {std::pair{"--output", &flags.output}, std::pair{"--html", &flags.html}}) {
    if (!path->empty() && is_same_file(trace, *path))
      throw InvalidArgument(fmt::format("'{}' is the trace; {} needs another file", *path, flag));
  }
  if (!flags.output.empty() && !flags.html.empty() && is_same_file(flags.output, flags.html))
    throw InvalidArgument(fmt::format("--output and --html are both '{}'; give two files", flags.html));
}

int replay_trace(const ReplayFlags& flags, const runtime::Environment& environment) {
  const SteadyClock clock;
  (void)parse_speed(flags.speed);
  check_files(flags);
  const engine::ModelConfig config = engine::load_model_config(flags.model);
  const replay::Trace trace =
      replay::parse_trace(read_source(flags.trace), flags.trace == "-" ? "standard input" : flags.trace);
  engine::EngineOptions options = engine_options(flags, config, trace);
  std::optional<Output> json;
  std::optional<Output> html;
  if (!flags.output.empty()) json.emplace(flags.output);
  if (!flags.html.empty()) html.emplace(flags.html);
  const auto backend = runtime::open_backend(backend_options(flags.device, environment));
  MetricsRegistry metrics;
  const std::unique_ptr<MetricsServer> server = serve_metrics(flags.metrics, metrics);
  options.metrics = &metrics;

  std::unique_ptr<engine::Engine> engine = load(*backend, flags, options, clock);
  const replay::Conditions conditions_of_run = conditions(flags, trace, *engine, backend->name());
  log().info("loaded; replaying {} requests", trace.requests.size());
  ProgressLine progress("replaying");
  const replay::ReplayRecord record = replay::replay(*engine, clock, trace, replay_options(flags, progress));
  progress.clear();
  engine->close();
  engine.reset();  // its memory is the next engine's

  replay::Report report{.conditions = &conditions_of_run,
                        .trace = &trace,
                        .record = &record,
                        .summary = replay::summarize(record),
                        .metrics = metrics.snapshot(),
                        .verification = std::nullopt};
  if (flags.verify && record.complete)
    report.verification = verify_alone(*backend, flags, options, trace, record);
  if (json) json->write(replay::to_json(report));
  if (html) html->write(replay::timeline_html(report));
  Output("").write(flags.json ? replay::to_json(report) : replay::to_text(report));
  if (json) json->commit();
  if (html) html->commit();
  if (interrupted()) return kInterrupted;
  check_outcome(report);
  return kOk;
}

}  // namespace

Action add_replay(CLI::App& command, const runtime::Environment& environment) {
  const auto flags = std::make_shared<ReplayFlags>();
  add_replay_flags(command, *flags);
  return [flags, environment] { return replay_trace(*flags, environment); };
}

}  // namespace metrale::app
