// SPDX-License-Identifier: Apache-2.0
#include "replayer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>

namespace metrale::replay {
namespace {

using engine::RequestId;

// How long a signal may go unseen while nothing is due.
constexpr Nanoseconds kLongestSleep = std::chrono::milliseconds(20);

engine::Request engine_request(const TraceRequest& request, std::vector<std::int32_t> prompt) {
  engine::Request result;
  result.prompt = std::move(prompt);
  result.sampling.temperature = request.temperature;
  result.sampling.seed = request.id;
  result.max_new_tokens = request.max_tokens;
  result.ignore_eos = true;
  result.n = request.n;
  result.priority = request.priority;
  result.timeout = request.timeout;
  result.tenant = request.tenant;
  return result;
}

class Replay {
 public:
  Replay(engine::Engine& engine, const Clock& clock, const Trace& trace, const ReplayOptions& options)
      : engine_(&engine), clock_(&clock), trace_(&trace), options_(&options), begin_(clock.now()) {
    record_.requests.resize(trace.requests.size());
    children_.resize(trace.requests.size());
    for (std::size_t i = 0; i < trace.requests.size(); ++i) {
      const TraceRequest& request = trace.requests[i];
      if (request.parent) {
        children_[*request.parent].push_back(i);
      } else {
        make_due(i, scaled(request.arrival));
      }
    }
    record_.least_free_blocks = engine.cache().num_free_blocks();
    record_.load.add({.free_blocks = record_.least_free_blocks});
  }

  ReplayRecord run() {
    bool stopping = false;
    while (!engine_->idle() || (!due_.empty() && !stopping)) {
      if (!stopping && options_->interrupted && options_->interrupted()) {
        stopping = true;
        for (const auto& [id, request] : running_) engine_->cancel(id);
      }
      if (!stopping) submit_due();
      if (engine_->idle()) {
        if (!stopping && !due_.empty()) sleep_until_due();
        continue;
      }
      step();
    }
    record_.wall = now();
    record_.complete = !stopping;
    record_.counts = engine_->counts();
    return std::move(record_);
  }

 private:
  struct Due {
    Nanoseconds at;
    std::size_t request;
    friend bool operator>(const Due& a, const Due& b) {
      return std::pair(a.at, a.request) > std::pair(b.at, b.request);
    }
  };

  [[nodiscard]] Nanoseconds now() const { return clock_->now() - begin_; }
  [[nodiscard]] Nanoseconds scaled(Nanoseconds time) const {
    if (options_->speed == 0) return Nanoseconds(0);
    return Nanoseconds(std::llround(static_cast<double>(time.count()) / options_->speed));
  }

  void make_due(std::size_t request, Nanoseconds at) {
    record_.requests[request].due = at;
    due_.push({at, request});
  }

  void submit_due() {
    while (!due_.empty() && due_.top().at <= now()) {
      const std::size_t i = due_.top().request;
      due_.pop();
      const TraceRequest& request = trace_->requests[i];
      record_.requests[i].answers.resize(request.n);
      std::vector<std::int32_t> prompt = prompt_of(*trace_, record_.requests, i);
      record_.requests[i].prompt_tokens = static_cast<std::uint32_t>(prompt.size());
      const RequestId id = engine_->submit(engine_request(request, std::move(prompt)));
      running_[id] = i;
      if (request.cancel_after == 0U) engine_->cancel(id);
    }
  }

  void sleep_until_due() {
    // Nothing can come in but from this thread: this is a sleep.
    const Nanoseconds left = due_.top().at - now();
    if (left.count() > 0) (void)engine_->wait_for_work(std::min(left, kLongestSleep));
    slept_ = true;
  }

  void step() {
    // The quiet time ends here, not at the end of the last step.
    if (std::exchange(slept_, false) && record_.steps > 0) observe_load();
    const std::vector<engine::StepEvent> events = engine_->step();
    ++record_.steps;
    const Nanoseconds at = now();
    for (const engine::StepEvent& event : events) on_event(event, at);
    observe_load();
  }

  void on_event(const engine::StepEvent& event, Nanoseconds at) {
    const std::size_t i = running_.at(event.request);
    RequestRecord& record = record_.requests[i];
    AnswerRecord& answer = record.answers.at(event.choice);
    if (event.token) {
      answer.tokens.push_back(*event.token);
      answer.times.push_back(at);
      if (!record.first_token) record.first_token = at;
      const auto limit = trace_->requests[i].cancel_after;
      if (limit && record.output_tokens() >= *limit) engine_->cancel(event.request);
    }
    if (event.finished) answer.reason = event.finished;
    if (event.request_finished) on_end(event.request, i, at);
  }

  void on_end(RequestId id, std::size_t i, Nanoseconds at) {
    RequestRecord& record = record_.requests[i];
    const engine::RequestStats stats = engine_->take_stats(id);
    running_.erase(id);
    ++ended_;
    record.ended = at;
    record.cached_tokens = stats.cached_tokens;
    record.preemptions = stats.preemptions;
    // One that never ran has no first step: all its time is waiting.
    if (record.first_token || stats.queued.count() > 0)
      record.started = stats.submitted + stats.queued - begin_;
    for (const std::size_t child : children_[i]) {
      const TraceRequest& request = trace_->requests[child];
      make_due(child, std::max(scaled(request.arrival), at + scaled(request.think)));
    }
  }

  void observe_load() {
    const engine::EngineCounts counts = engine_->counts();
    const Load load{.at = now(),
                    .waiting = counts.waiting,
                    .running = counts.running,
                    .free_blocks = counts.free_blocks,
                    .cached_blocks = counts.cached_blocks,
                    .held_blocks = counts.held_blocks};
    record_.load.add(load);
    Load& peak = record_.peak;
    peak.waiting = std::max(peak.waiting, load.waiting);
    peak.running = std::max(peak.running, load.running);
    peak.cached_blocks = std::max(peak.cached_blocks, load.cached_blocks);
    peak.held_blocks = std::max(peak.held_blocks, load.held_blocks);
    record_.least_free_blocks = std::min(record_.least_free_blocks, load.free_blocks);
    if (options_->progress) options_->progress({ended_, trace_->requests.size(), load.running, load.waiting});
  }

  engine::Engine* engine_;
  const Clock* clock_;
  const Trace* trace_;
  const ReplayOptions* options_;
  Nanoseconds begin_;
  ReplayRecord record_;
  std::vector<std::vector<std::size_t>> children_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::unordered_map<RequestId, std::size_t> running_;
  std::size_t ended_ = 0;
  bool slept_ = false;
};

// One answer by itself, of the length that it had.
std::vector<std::int32_t> compute_alone(engine::Engine& engine, engine::Request request) {
  std::vector<std::int32_t> tokens;
  const RequestId id = engine.submit(std::move(request));
  while (!engine.idle()) {
    for (const engine::StepEvent& event : engine.step()) {
      if (event.token) tokens.push_back(*event.token);
    }
  }
  (void)engine.take_stats(id);
  return tokens;
}

}  // namespace

ReplayRecord replay(engine::Engine& engine, const Clock& clock, const Trace& trace,
                    const ReplayOptions& options) {
  return Replay(engine, clock, trace, options).run();
}

Verification verify(engine::Engine& engine, const Trace& trace, const ReplayRecord& record,
                    const ReplayOptions& options) {
  Verification result;
  for (std::size_t i = 0; i < record.requests.size(); ++i) {
    const TraceRequest& asked = trace.requests[i];
    for (std::uint32_t choice = 0; choice < record.requests[i].answers.size(); ++choice) {
      if (options.interrupted && options.interrupted()) throw Cancelled("verification interrupted");
      if (options.progress) options.progress({i, trace.requests.size(), 1, 0});
      const std::vector<std::int32_t>& seen = record.requests[i].answers[choice].tokens;
      if (seen.empty()) continue;
      engine::Request request = engine_request(asked, prompt_of(trace, record.requests, i));
      request.n = 1;
      request.sampling.seed += choice;
      request.timeout.reset();
      request.max_new_tokens = static_cast<std::uint32_t>(seen.size());
      const std::vector<std::int32_t> alone = compute_alone(engine, std::move(request));
      ++result.answers;
      result.tokens += seen.size();
      if (alone == seen) continue;
      const auto [differs, other] = std::ranges::mismatch(seen, alone);
      if (result.different_answers++ == 0) {
        result.first_difference = fmt::format("answer {} to request {} differs from token {} on", choice + 1,
                                              asked.id, differs - seen.begin() + 1);
      }
    }
  }
  return result;
}

}  // namespace metrale::replay
