// SPDX-License-Identifier: Apache-2.0
#include "summary.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace metrale::replay {
namespace {

using engine::FinishReason;

double seconds(Nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

bool ended_with(const RequestRecord& record, FinishReason reason) {
  return std::ranges::any_of(record.answers,
                             [&](const AnswerRecord& answer) { return answer.reason == reason; });
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Percentiles percentiles(std::vector<double> values) {
  Percentiles result{.count = values.size()};
  if (values.empty()) return result;
  std::ranges::sort(values);
  const auto rank = [&](std::size_t percent) { return values[(values.size() * percent + 99) / 100 - 1]; };
  double sum = 0;
  for (const double value : values) sum += value;
  result.mean = sum / static_cast<double>(values.size());
  result.p50 = rank(50);
  result.p90 = rank(90);
  result.p95 = rank(95);
  result.p99 = rank(99);
  result.max = values.back();
  return result;
}

double Summary::token_hit_rate() const {
  return share(cached_tokens, prompt_tokens);
}

double Summary::request_hit_rate() const {
  return share(requests_with_hits, started);
}

std::string_view outcome(const RequestRecord& record) {
  if (!record.due || record.prompt_tokens == 0) return "waiting";
  if (!record.ended) return "running";
  for (const FinishReason reason :
       {FinishReason::kNoLogits, FinishReason::kTimeout, FinishReason::kCancelled}) {
    if (ended_with(record, reason)) return engine::to_string(reason);
  }
  return "finished";
}

Summary summarize(const ReplayRecord& record) {
  Summary summary;
  summary.requests = record.requests.size();
  summary.wall_seconds = seconds(record.wall);
  std::vector<double> ttft;
  std::vector<double> inter_token;
  std::vector<double> queue;
  std::vector<double> end_to_end;
  for (const RequestRecord& request : record.requests) {
    if (!request.due || !request.ended) continue;
    ++summary.submitted;
    summary.prompt_tokens += request.prompt_tokens;
    summary.cached_tokens += request.cached_tokens;
    summary.output_tokens += request.output_tokens();
    summary.requests_with_hits += request.cached_tokens > 0 ? 1 : 0;
    summary.preemptions += request.preemptions;
    const std::string_view end = outcome(request);
    summary.finished += end == "finished" ? 1 : 0;
    summary.cancelled += end == "cancelled" ? 1 : 0;
    summary.timed_out += end == "timeout" ? 1 : 0;
    summary.without_logits += end == "no_logits" ? 1 : 0;
    if (request.started) ++summary.started;
    if (request.started) queue.push_back(seconds(*request.started - *request.due));
    if (request.first_token) ttft.push_back(seconds(*request.first_token - *request.due));
    if (end == "finished") end_to_end.push_back(seconds(*request.ended - *request.due));
    for (const AnswerRecord& answer : request.answers) {
      for (std::size_t i = 1; i < answer.times.size(); ++i)
        inter_token.push_back(seconds(answer.times[i] - answer.times[i - 1]));
    }
  }
  summary.ttft = percentiles(std::move(ttft));
  summary.inter_token = percentiles(std::move(inter_token));
  summary.queue = percentiles(std::move(queue));
  summary.end_to_end = percentiles(std::move(end_to_end));
  return summary;
}

}  // namespace metrale::replay
