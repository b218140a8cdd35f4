// SPDX-License-Identifier: Apache-2.0
#include "generator.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/sampling/fixed_exp.h>

namespace metrale::replay {
namespace {

constexpr double kShortestRate = 1e-4;
constexpr double kHighestRate = 1e6;
constexpr double kLongestPause = 3600;

Nanoseconds to_nanoseconds(double seconds) {
  return Nanoseconds(std::llround(seconds * 1e9));
}

void check(const TraceOptions& options) {
  expects(options.requests > 0, "trace: no requests");
  expects(options.rate >= kShortestRate && options.rate <= kHighestRate,
          "trace: the rate is 0.0001 to 1000000");
  expects(options.vocab > 0 && options.vocab <= 0x7FFF'FFFF, "trace: the vocabulary is 1 to 2^31 - 1 tokens");
  expects(options.prefixes > 0, "trace: no shared prompts to choose from");
  expects(options.think >= 0 && options.think <= kLongestPause, "trace: pauses are 0 to 3600 seconds");
  expects(options.tool >= 0 && options.tool <= kLongestPause, "trace: pauses are 0 to 3600 seconds");
  expects(options.cancel_rate >= 0 && options.cancel_rate <= 1, "trace: the rate of cancellations is 0 to 1");
  for (const LengthRange& range :
       {options.own_tokens, options.output_tokens, options.turns, options.steps, options.branches}) {
    expects(range.low > 0 && range.low <= range.high, "trace: a range goes from 1 or more upwards");
  }
  expects(options.branches.high <= kMaxAnswers, "trace: more branches than a request may have answers");
}

[[noreturn]] void fail_too_long(const TraceOptions& options) {
  throw InvalidArgument(fmt::format(
      "trace: {} requests at {} a second do not arrive within the {} seconds of a trace; give a higher "
      "--rate or fewer --requests",
      options.requests, options.rate, kMaxSeconds));
}

// Refuses at once what would be refused after all is drawn: the sum of so many exponential times has a
// relative deviation of 1 / sqrt(requests), and six of them do not happen.
void check_duration(const TraceOptions& options) {
  const double mean_seconds = options.requests / options.rate;
  if (mean_seconds * (1 - 6 / std::sqrt(options.requests)) > kMaxSeconds) fail_too_long(options);
}

class Generator {
 public:
  explicit Generator(const TraceOptions& options)
      : options_(options),
        draws_(options.seed),
        mean_gap_(to_nanoseconds(1 / options.rate)),
        cancel_share_(sampling::to_share(static_cast<float>(options.cancel_rate))),
        next_stream_(options.prefixes) {
    trace_.vocab = options.vocab;
    trace_.seed = options.seed;
  }

  Trace run(const std::function<bool()>& interrupted) {
    while (!is_full()) {
      if (interrupted && interrupted()) throw Cancelled("interrupted while generating a trace");
      add_session(options_.kind);
    }
    return std::move(trace_);
  }

 private:
  [[nodiscard]] bool is_full() const { return trace_.requests.size() == options_.requests; }

  void add_session(TraceKind kind) {
    constexpr std::array kSingleKinds{TraceKind::kSystem, TraceKind::kChat, TraceKind::kAgent,
                                      TraceKind::kFork};
    tenant_ = options_.tenants == 0 ? "" : fmt::format("t{}", draws_.below(options_.tenants));
    switch (kind) {
      case TraceKind::kMix:
        return add_session(kSingleKinds[draws_.below(kSingleKinds.size())]);
      case TraceKind::kSystem:
        (void)add_root();
        return;
      case TraceKind::kChat:
        return add_chain(draws_.in(options_.turns), options_.think);
      case TraceKind::kAgent:
        return add_chain(draws_.in(options_.steps), options_.tool);
      case TraceKind::kFork:
        return add_fork();
    }
  }

  void add_chain(std::uint32_t length, double pause) {
    std::size_t last = add_root();
    for (std::uint32_t i = 1; i < length && !is_full(); ++i) last = add_child(last, to_nanoseconds(pause));
  }

  void add_fork() {
    const std::uint32_t branches = draws_.in(options_.branches);
    const std::size_t root = add_root();
    trace_.requests[root].n = branches;
    trace_.requests[root].temperature = 1;  // greedy answers would all be the same
    for (std::uint32_t i = 0; i < branches && !is_full(); ++i) (void)add_child(root, Nanoseconds(0));
  }

  std::size_t add_root() {
    if (clock_ > to_nanoseconds(kMaxSeconds)) fail_too_long(options_);
    TraceRequest request;
    request.arrival = clock_;
    if (options_.shared_tokens > 0) {
      request.prompt.push_back(
          {.stream = draws_.below(options_.prefixes), .count = options_.shared_tokens, .ids = {}});
    }
    return add(std::move(request));
  }

  std::size_t add_child(std::size_t parent, Nanoseconds mean_pause) {
    TraceRequest request;
    request.parent = parent;
    request.think = draws_.exponential(mean_pause);
    return add(std::move(request));
  }

  // What every request has. Each one moves the time of arrival on, so that there are `rate` of them a second
  // whatever the length of sessions.
  std::size_t add(TraceRequest request) {
    clock_ += draws_.exponential(mean_gap_);
    request.id = trace_.requests.size();
    request.tenant = tenant_;
    request.prompt.push_back({.stream = next_stream_++, .count = draws_.in(options_.own_tokens), .ids = {}});
    request.max_tokens = draws_.in(options_.output_tokens);
    if (draws_.chance(cancel_share_))
      request.cancel_after = static_cast<std::uint32_t>(draws_.below(request.max_tokens));
    trace_.requests.push_back(std::move(request));
    return trace_.requests.size() - 1;
  }

  TraceOptions options_;
  Draws draws_;
  Nanoseconds mean_gap_;
  std::uint64_t cancel_share_;
  std::uint64_t next_stream_;  // below it lie the shared prompts
  Nanoseconds clock_{0};
  std::string tenant_;
  Trace trace_;
};

// A trace that nobody could read back is the options' fault.
void check_sizes(const Trace& trace) {
  const std::vector<std::uint64_t> lengths = longest_prompts(trace.requests);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] + trace.requests[i].max_tokens > kMaxTokens)
      throw InvalidArgument(fmt::format(
          "trace: request {} would have more than {} tokens; lower --shared-tokens, --own-tokens, "
          "--output-tokens, --turns or --steps",
          i, kMaxTokens));
  }
}

}  // namespace

Trace generate_trace(const TraceOptions& options, const std::function<bool()>& interrupted) {
  check(options);
  check_duration(options);
  Trace trace = Generator(options).run(interrupted);
  check_sizes(trace);
  return trace;
}

}  // namespace metrale::replay
