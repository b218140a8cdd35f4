// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "metrics_json.h"

namespace metrale::app {
namespace {

double seconds(Nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

double rate(double count, double time) {
  return time > 0 ? count / time : 0;
}

double prefill_rate(const engine::RequestStats& stats) {
  return rate(stats.prompt_tokens, seconds(stats.ttft - stats.queued));
}

double decode_rate(const engine::RequestStats& stats) {
  return stats.output_tokens > 1 ? rate(stats.output_tokens - 1, seconds(stats.decode)) : 0;
}

double mean(const std::vector<Answer>& answers, double (*value)(const engine::RequestStats&)) {
  double sum = 0;
  for (const Answer& answer : answers) sum += value(answer.stats);
  return answers.empty() ? 0 : sum / static_cast<double>(answers.size());
}

}  // namespace

std::uint64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("VmHWM:")) continue;
    const std::size_t digit = line.find_first_of("0123456789");
    std::uint64_t kib = 0;
    if (digit != std::string::npos) std::from_chars(line.data() + digit, line.data() + line.size(), kib);
    return kib * 1024;
  }
  return 0;
}

std::string to_json_line(const Answer& answer, const RunStats& run, const MetricsRegistry* metrics) {
  nlohmann::ordered_json json;
  json["prompt_tokens"] = answer.stats.prompt_tokens;
  json["tokens"] = answer.tokens;
  json["text"] = answer.text ? nlohmann::ordered_json(*answer.text) : nlohmann::ordered_json(nullptr);
  json["finish_reason"] = engine::to_string(answer.finished.value_or(engine::FinishReason::kCancelled));
  json["stats"] = {{"load_seconds", run.load_seconds},
                   {"queued_seconds", seconds(answer.stats.queued)},
                   {"ttft_seconds", seconds(answer.stats.ttft)},
                   {"prefill_tokens_per_second", prefill_rate(answer.stats)},
                   {"decode_tokens_per_second", decode_rate(answer.stats)},
                   {"kv_bytes_per_token", run.kv_bytes_per_token},
                   {"weight_bytes", run.weight_bytes},
                   {"arena_bytes", run.arena_bytes},
                   {"kv_cache_bytes", run.kv_cache_bytes},
                   {"peak_memory_bytes", peak_memory_bytes()}};
  if (metrics != nullptr) json["metrics"] = to_json(metrics->snapshot());
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string stats_text(const std::vector<Answer>& answers, const RunStats& run) {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t output_tokens = 0;
  for (const Answer& answer : answers) {
    prompt_tokens += answer.stats.prompt_tokens;
    output_tokens += answer.stats.output_tokens;
  }
  constexpr double kMib = 1U << 20;
  std::string text;
  text += fmt::format("load          {:.3f} s, {:.1f} MiB of weights\n", run.load_seconds,
                      static_cast<double>(run.weight_bytes) / kMib);
  text += fmt::format("requests      {}, {} prompt tokens, {} output tokens in {:.3f} s\n", answers.size(),
                      prompt_tokens, output_tokens, run.wall_seconds);
  text += fmt::format("TTFT          {:.1f} ms\n",
                      1e3 * mean(answers, [](const engine::RequestStats& s) { return seconds(s.ttft); }));
  text += fmt::format("prefill       {:.1f} tokens/s a request\n", mean(answers, prefill_rate));
  text += fmt::format("decode        {:.1f} tokens/s a request, {:.1f} in all\n", mean(answers, decode_rate),
                      rate(static_cast<double>(output_tokens), run.wall_seconds));
  text += fmt::format("KV cache      {} bytes a token, {:.1f} MiB\n", run.kv_bytes_per_token,
                      static_cast<double>(run.kv_cache_bytes) / kMib);
  text += fmt::format("arena         {:.1f} MiB\n", static_cast<double>(run.arena_bytes) / kMib);
  text += fmt::format("peak memory   {:.1f} MiB\n", static_cast<double>(peak_memory_bytes()) / kMib);
  return text;
}

}  // namespace metrale::app
