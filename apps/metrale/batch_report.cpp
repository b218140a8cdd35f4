// SPDX-License-Identifier: Apache-2.0
#include "batch_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "metrics_json.h"

namespace metrale::app {
namespace {

double rate(std::uint64_t count, double time) {
  return time > 0 ? static_cast<double>(count) / time : 0;
}

}  // namespace

double BatchTotals::hit_rate() const {
  return rate(cached_tokens, static_cast<double>(prompt_tokens));
}

std::string to_text(const BatchReport& report) {
  const BatchTotals& totals = report.totals;
  std::string text = fmt::format("requests      {} ok, {} failed", totals.ok, totals.failed);
  if (totals.kept != 0) text += fmt::format(", {} kept from before", totals.kept);
  if (totals.unfinished != 0) text += fmt::format(", {} not finished", totals.unfinished);
  text += '\n';
  if (totals.early != 0)
    text += fmt::format("              {} finished after one that is not: written before it\n", totals.early);
  if (report.unknown_results != 0)
    text +=
        fmt::format("              {} results of ids that the input does not have\n", report.unknown_results);
  text += fmt::format("prompts       {} tokens, {} of them cached: hit rate {:.1f} %\n", totals.prompt_tokens,
                      totals.cached_tokens, 100 * totals.hit_rate());
  text +=
      fmt::format("output        {} tokens in {:.3f} s: {:.1f} tokens/s, {:.2f} requests/s\n",
                  totals.output_tokens, report.wall_seconds, rate(totals.output_tokens, report.wall_seconds),
                  rate(totals.ok + totals.failed, report.wall_seconds));
  text +=
      fmt::format("KV blocks     {} evicted; {} preemptions\n", report.evicted_blocks, report.preemptions);
  text += fmt::format("load          {:.3f} s\n", report.load_seconds);
  if (report.interrupted) text += "interrupted: --resume goes on from here\n";
  return text;
}

std::string to_json_line(const BatchReport& report) {
  const BatchTotals& totals = report.totals;
  const nlohmann::ordered_json json{
      {"ok", totals.ok},
      {"failed", totals.failed},
      {"kept", totals.kept},
      {"unfinished", totals.unfinished},
      {"early", totals.early},
      {"unknown_results", report.unknown_results},
      {"interrupted", report.interrupted},
      {"prompt_tokens", totals.prompt_tokens},
      {"cached_tokens", totals.cached_tokens},
      {"hit_rate", totals.hit_rate()},
      {"output_tokens", totals.output_tokens},
      {"wall_seconds", report.wall_seconds},
      {"output_tokens_per_second", rate(totals.output_tokens, report.wall_seconds)},
      {"requests_per_second", rate(totals.ok + totals.failed, report.wall_seconds)},
      {"evicted_blocks", report.evicted_blocks},
      {"preemptions", report.preemptions},
      {"load_seconds", report.load_seconds},
      {"metrics", to_json(report.metrics)}};
  return json.dump() + "\n";
}

}  // namespace metrale::app
