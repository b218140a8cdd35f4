// SPDX-License-Identifier: Apache-2.0
// metrale trace: a workload from a seed, for metrale replay.
#include <charconv>
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/engine/model_config.h>

#include "commands.h"
#include "engine_flags.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "output.h"
#include "replay/generator.h"

namespace metrale::app {
namespace {

struct TraceFlags {
  replay::TraceOptions options;
  std::string kind = "mix";
  std::string own_tokens = "16:128";
  std::string output_tokens = "16:128";
  std::string turns = "2:6";
  std::string steps = "4:12";
  std::string branches = "2:4";
  std::string model;
  std::string output;
};

// "16:128", or "16" for 16:16.
replay::LengthRange parse_range(const std::string& text, const char* flag) {
  constexpr std::uint32_t kMost = 1U << 20;
  const std::size_t colon = text.find(':');
  const auto parse = [&](std::string_view part) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc{} || end != part.data() + part.size() || value == 0 || value > kMost) {
      throw InvalidArgument(
          fmt::format("{}: '{}' is neither a number nor LOW:HIGH, from 1 to {}", flag, text, kMost));
    }
    return value;
  };
  const std::string_view all = text;
  replay::LengthRange range;
  range.low = parse(all.substr(0, colon));
  range.high = colon == std::string::npos ? range.low : parse(all.substr(colon + 1));
  if (range.low > range.high) throw InvalidArgument(fmt::format("{}: '{}' goes downwards", flag, text));
  return range;
}

replay::TraceKind parse_kind(const std::string& name) {
  if (name == "system") return replay::TraceKind::kSystem;
  if (name == "chat") return replay::TraceKind::kChat;
  if (name == "agent") return replay::TraceKind::kAgent;
  if (name == "fork") return replay::TraceKind::kFork;
  return replay::TraceKind::kMix;
}

// The command that makes this trace again, with every option that has a part in it.
std::string describe(const TraceFlags& flags) {
  const replay::TraceOptions& o = flags.options;
  std::string text = fmt::format(
      "metrale trace --kind {} --seed {} --requests {} --rate {} --vocab {} --shared-prompts {} "
      "--shared-tokens {} --own-tokens {} --output-tokens {}",
      flags.kind, o.seed, o.requests, o.rate, o.vocab, o.prefixes, o.shared_tokens, flags.own_tokens,
      flags.output_tokens);
  const auto has = [&](replay::TraceKind kind) {
    return o.kind == kind || o.kind == replay::TraceKind::kMix;
  };
  if (has(replay::TraceKind::kChat)) text += fmt::format(" --turns {} --think {}", flags.turns, o.think);
  if (has(replay::TraceKind::kAgent)) text += fmt::format(" --steps {} --tool-time {}", flags.steps, o.tool);
  if (has(replay::TraceKind::kFork)) text += fmt::format(" --branches {}", flags.branches);
  return text + fmt::format(" --tenants {} --cancel-rate {}", o.tenants, o.cancel_rate);
}

int trace(TraceFlags flags, bool has_vocab) {
  expects(flags.model.empty() || !has_vocab, "give one of --vocab and --model");
  replay::TraceOptions& options = flags.options;
  if (!flags.model.empty()) options.vocab = engine::load_model_config(flags.model).vocab_size;
  options.kind = parse_kind(flags.kind);
  options.own_tokens = parse_range(flags.own_tokens, "--own-tokens");
  options.output_tokens = parse_range(flags.output_tokens, "--output-tokens");
  options.turns = parse_range(flags.turns, "--turns");
  options.steps = parse_range(flags.steps, "--steps");
  options.branches = parse_range(flags.branches, "--branches");
  replay::Trace made = replay::generate_trace(options, [] { return interrupted(); });
  made.note = describe(flags);
  Output output(flags.output);
  constexpr std::size_t kPartBytes = std::size_t{1} << 20;
  std::string part;
  replay::write_text(made, [&](std::string_view line) {
    if (interrupted()) throw Cancelled("interrupted while writing a trace");
    part += line;
    if (part.size() < kPartBytes) return;
    output.write(part);
    part.clear();
  });
  output.write(part);
  output.commit();
  return kOk;
}

void add_session_flags(CLI::App& command, TraceFlags& flags) {
  replay::TraceOptions& options = flags.options;
  command.add_option("--turns", flags.turns, "Requests of a chat: a number, or LOW:HIGH")
      ->capture_default_str();
  command.add_option("--steps", flags.steps, "Requests of an agent: a number, or LOW:HIGH")
      ->capture_default_str();
  command
      .add_option("--branches", flags.branches,
                  "Answers of a fork, and requests that go on from the first of them: a number, or LOW:HIGH")
      ->capture_default_str();
  command.add_option("--think", options.think, "Mean seconds from an answer to the next turn of its chat")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command
      .add_option("--tool-time", options.tool, "Mean seconds from an answer to the next step of its agent")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command
      .add_option("--tenants", options.tenants,
                  "Tenants that sessions belong to, who share no prefixes (0: all are one)")
      ->check(CLI::Range(0U, 1U << 20))
      ->capture_default_str();
  command
      .add_option("--cancel-rate", options.cancel_rate, "Share of requests whose client goes before the end")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

}  // namespace

Action add_trace(CLI::App& command) {
  const auto flags = std::make_shared<TraceFlags>();
  replay::TraceOptions& options = flags->options;
  command.add_option("-o,--output", flags->output, "Write to a file, which appears when it is complete");
  command
      .add_option("--kind", flags->kind,
                  "Sessions: system (single requests), chat, agent, fork, or mix of them")
      ->check(CLI::IsMember({"system", "chat", "agent", "fork", "mix"}))
      ->capture_default_str();
  add_seed_flag(command, options.seed, "Seed of the workload and of its tokens");
  command.add_option("--requests", options.requests, "Requests in the trace")
      ->check(CLI::Range(1U, 10'000'000U))
      ->capture_default_str();
  command
      .add_option("--rate", options.rate, "Requests a second in the long run; sessions arrive as they like")
      ->check(CLI::Range(1e-4, 1e6))
      ->capture_default_str();
  CLI::Option* const vocab = command.add_option("--vocab", options.vocab, "Token ids lie below this")
                                 ->check(CLI::Range(1U, 0x7FFF'FFFFU))
                                 ->capture_default_str();
  command.add_option("-m,--model", flags->model, "Model directory whose vocabulary to take instead");
  command
      .add_option("--shared-prompts", options.prefixes,
                  "Prompts that sessions begin with, such as system prompts: each takes one of so many")
      ->check(CLI::Range(1U, 1U << 20))
      ->capture_default_str();
  command
      .add_option("--shared-tokens", options.shared_tokens, "Tokens of each of those (0: none are shared)")
      ->check(CLI::Range(0U, 1U << 20))
      ->capture_default_str();
  command
      .add_option("--own-tokens", flags->own_tokens,
                  "Tokens of a request beyond what it shares: a number, or LOW:HIGH")
      ->capture_default_str();
  command.add_option("--output-tokens", flags->output_tokens, "Tokens of an answer: a number, or LOW:HIGH")
      ->capture_default_str();
  add_session_flags(command, *flags);
  return [flags, vocab] { return trace(*flags, vocab->count() > 0); };
}

}  // namespace metrale::app
