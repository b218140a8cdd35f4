// SPDX-License-Identifier: Apache-2.0
// The forms of a report: JSON and text.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "../metrics_json.h"
#include "summary.h"

namespace metrale::replay {
namespace {

using nlohmann::ordered_json;

double seconds(Nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

ordered_json seconds_or_null(const std::optional<Nanoseconds>& time) {
  return time ? ordered_json(seconds(*time)) : ordered_json(nullptr);
}

double rate(std::uint64_t count, double time) {
  return time > 0 ? static_cast<double>(count) / time : 0;
}

ordered_json percentiles_json(const Percentiles& values) {
  return {{"count", values.count}, {"mean", values.mean}, {"p50", values.p50}, {"p90", values.p90},
          {"p95", values.p95},     {"p99", values.p99},   {"max", values.max}};
}

ordered_json conditions_json(const Conditions& conditions) {
  ordered_json json{{"model", conditions.model}, {"trace", conditions.trace}, {"note", conditions.note}};
  json["speed"] = conditions.speed == 0 ? ordered_json("max") : ordered_json(conditions.speed);
  json["device"] = conditions.device;
  json["dtype"] = conditions.compute;
  json["kv_dtype"] = conditions.kv_dtype;
  json["max_seq_len"] = conditions.limits.max_seq_len;
  json["max_batch_size"] = conditions.limits.max_batch_size;
  json["max_batch_tokens"] = conditions.limits.max_batch_tokens;
  json["block_size"] = conditions.limits.block_size;
  json["kv_blocks"] = conditions.kv_blocks;
  json["prefix_caching"] = conditions.prefix_caching;
  json["fast"] = conditions.fast;
  return json;
}

ordered_json request_json(const TraceRequest& asked, const RequestRecord& record) {
  return {{"id", asked.id},
          {"outcome", outcome(record)},
          {"due", seconds_or_null(record.due)},
          {"started", seconds_or_null(record.started)},
          {"first_token", seconds_or_null(record.first_token)},
          {"ended", seconds_or_null(record.ended)},
          {"prompt_tokens", record.prompt_tokens},
          {"cached_tokens", record.cached_tokens},
          {"output_tokens", record.output_tokens()},
          {"preemptions", record.preemptions}};
}

std::string dumped(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

// The object with one member more, a line a request.
std::string with_requests(std::string object, const Report& report) {
  object.erase(object.rfind('\n'));  // and the brace behind it
  object += ",\n  \"per_request\": [";
  for (std::size_t i = 0; i < report.record->requests.size(); ++i) {
    object += i == 0 ? "\n    " : ",\n    ";
    object += dumped(request_json(report.trace->requests[i], report.record->requests[i]), -1);
  }
  return object + "\n  ]\n}\n";
}

ordered_json engine_json(const ReplayRecord& record) {
  const engine::SchedulerCounters& scheduler = record.counts.scheduler;
  return {{"steps", record.steps},
          {"computed_tokens", scheduler.computed_tokens},
          {"preemptions", scheduler.preempted},
          {"recomputed_tokens", scheduler.recomputed_tokens},
          {"forks", scheduler.forked},
          {"most_overtaken", scheduler.most_overtaken},
          {"peak_running", record.peak.running},
          {"peak_waiting", record.peak.waiting},
          {"peak_held_blocks", record.peak.held_blocks},
          {"peak_cached_blocks", record.peak.cached_blocks},
          {"least_free_blocks", record.least_free_blocks}};
}

ordered_json cache_json(const ReplayRecord& record, const Summary& summary) {
  const prefix::PrefixCounters& prefix = record.counts.prefix;
  return {{"token_hit_rate", summary.token_hit_rate()},
          {"request_hit_rate", summary.request_hit_rate()},
          {"hit_tokens", summary.cached_tokens},
          {"requests_with_hits", summary.requests_with_hits},
          {"inserted_blocks", prefix.inserted_blocks},
          {"evicted_blocks", prefix.evicted_blocks},
          {"deduplicated_blocks", record.counts.scheduler.deduplicated_blocks}};
}

std::string latency_line(const char* name, const Percentiles& values) {
  constexpr double kMilli = 1e3;
  return fmt::format("{:<13} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f}\n", name, kMilli * values.p50,
                     kMilli * values.p90, kMilli * values.p95, kMilli * values.p99, kMilli * values.max);
}

}  // namespace

std::string to_json(const Report& report) {
  const Summary& s = report.summary;
  ordered_json json{{"metrale_replay", 1}, {"complete", report.record->complete}};
  json["conditions"] = conditions_json(*report.conditions);
  json["requests"] = {{"in_trace", s.requests},   {"ended", s.submitted},   {"finished", s.finished},
                      {"cancelled", s.cancelled}, {"timeout", s.timed_out}, {"no_logits", s.without_logits}};
  json["tokens"] = {{"prompt", s.prompt_tokens}, {"cached", s.cached_tokens}, {"output", s.output_tokens}};
  json["wall_seconds"] = s.wall_seconds;
  json["throughput"] = {{"requests_per_second", rate(s.submitted, s.wall_seconds)},
                        {"prompt_tokens_per_second", rate(s.prompt_tokens, s.wall_seconds)},
                        {"output_tokens_per_second", rate(s.output_tokens, s.wall_seconds)}};
  json["latency_seconds"] = {{"ttft", percentiles_json(s.ttft)},
                             {"inter_token", percentiles_json(s.inter_token)},
                             {"queue", percentiles_json(s.queue)},
                             {"end_to_end", percentiles_json(s.end_to_end)}};
  json["prefix_cache"] = cache_json(*report.record, s);
  json["engine"] = engine_json(*report.record);
  json["metrics"] = app::to_json(report.metrics);
  if (report.verification) {
    json["verification"] = {{"answers", report.verification->answers},
                            {"tokens", report.verification->tokens},
                            {"different_answers", report.verification->different_answers},
                            {"first_difference", report.verification->first_difference}};
  }
  return with_requests(dumped(json, 2), report);
}

std::string to_text(const Report& report) {
  const Summary& s = report.summary;
  const ReplayRecord& record = *report.record;
  std::string text;
  if (!record.complete) text += "interrupted: the figures are those of the part that ran\n";
  text += fmt::format("requests      {} of {} finished, {} cancelled, {} timed out, in {:.3f} s\n",
                      s.finished, s.requests, s.cancelled, s.timed_out, s.wall_seconds);
  text += fmt::format("tokens        {} of prompts, {} of them cached, {} of answers\n", s.prompt_tokens,
                      s.cached_tokens, s.output_tokens);
  text += fmt::format("throughput    {:.2f} requests/s, {:.1f} prompt tokens/s, {:.1f} output tokens/s\n",
                      rate(s.submitted, s.wall_seconds), rate(s.prompt_tokens, s.wall_seconds),
                      rate(s.output_tokens, s.wall_seconds));
  text += fmt::format(
      "prefix cache  {}, hits {:.1f} % of prompt tokens, {:.1f} % of requests; {} blocks evicted\n",
      report.conditions->prefix_caching ? "on" : "off", 100 * s.token_hit_rate(), 100 * s.request_hit_rate(),
      record.counts.prefix.evicted_blocks);
  text +=
      fmt::format("KV blocks     {}, at most {} held by running sequences; {} preemptions\n",
                  report.conditions->kv_blocks, record.peak.held_blocks, record.counts.scheduler.preempted);
  text += fmt::format("{:<13} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ms", "p50", "p90", "p95", "p99", "max");
  text += latency_line("TTFT", s.ttft);
  text += latency_line("inter-token", s.inter_token);
  text += latency_line("queue", s.queue);
  text += latency_line("end to end", s.end_to_end);
  if (const auto& checked = report.verification) {
    text += checked->different_answers == 0
                ? fmt::format("verified      {} answers, {} tokens: the same alone and without the cache\n",
                              checked->answers, checked->tokens)
                : fmt::format("verified      {} of {} answers differ: {}\n", checked->different_answers,
                              checked->answers, checked->first_difference);
  }
  return text;
}

}  // namespace metrale::replay
