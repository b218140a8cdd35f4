// SPDX-License-Identifier: Apache-2.0
#include "timeline.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "../html.h"

namespace metrale::replay {

using app::html_escaped;

namespace {

constexpr double kLeft = 60;     // of the time axis, in the units of the drawings
constexpr double kWidth = 1000;  // of it
constexpr double kRight = 20;
constexpr double kChartHeight = 140;
constexpr double kLabelledLane = 14;  // lanes from this height on have room for a number

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --ink: #1d2433; --soft: #667085; --line: #d5d9e2; --page: #ffffff;
  --queue: #c3c9d6; --cached: #1b9e77; --prefill: #3b6fb6; --decode: #e6a532; --end: #c2304a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9f0; --soft: #9aa3b5; --line: #3a4152; --page: #151922;
  --queue: #4d5568; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2em auto;
  max-width: 1200px; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin: 1.6em 0 .4em; }
table { border-collapse: collapse; } td, th { padding: .15em .9em .15em 0; text-align: right; font-weight: normal; }
th { color: var(--soft); } td:first-child, th:first-child { text-align: left; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); stroke-width: .6; } .curve { fill: none; stroke-width: 1.4; }
.queue { fill: var(--queue); } .cached { fill: var(--cached); } .prefill { fill: var(--prefill); }
.decode { fill: var(--decode); } .end { fill: var(--end); }
.key { display: inline-block; width: .9em; height: .9em; margin: 0 .35em 0 1em; vertical-align: -.1em; }
.note { color: var(--soft); }
)";

double seconds(Nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

// Maps times to the horizontal axis.
class TimeAxis {
 public:
  explicit TimeAxis(double end) : end_(end > 0 ? end : 1) {}

  [[nodiscard]] double x(Nanoseconds time) const { return x(seconds(time)); }
  [[nodiscard]] double x(double time) const { return kLeft + kWidth * std::clamp(time / end_, 0.0, 1.0); }

  // Lines from `top` to `bottom` with their times below.
  [[nodiscard]] std::string grid(double top, double bottom) const {
    std::string text;
    const double step = round_step(end_ / 8);
    for (int i = 0; i * step <= end_ * (1 + 1e-9); ++i) {
      const double at = x(i * step);
      text += fmt::format(R"(<line class="grid" x1="{0:.2f}" x2="{0:.2f}" y1="{1:.1f}" y2="{2:.1f}"/>)", at,
                          top, bottom);
      text += fmt::format(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle">{:.6g} s</text>)", at,
                          bottom + 13, i * step);
    }
    return text + "\n";
  }

 private:
  // The next of 1, 2, 5, 10, 20, …
  static double round_step(double least) {
    const double power = std::pow(10, std::floor(std::log10(least)));
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit * power >= least) return digit * power;
    }
    return 10 * power;
  }

  double end_;
};

std::string svg(double height, const std::string& label, const std::string& content) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.1f}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
                     kLeft + kWidth + kRight, height, html_escaped(label), content);
}

std::string key(const char* colour, const char* name) {
  return fmt::format("<span class=\"key\" style=\"background:var(--{})\"></span>{}", colour, name);
}

struct Curve {
  const char* name;
  const char* colour;  // a variable of the style sheet
  std::function<std::size_t(const Load&)> value;
};

std::string chart(const std::string& label, const std::vector<Load>& loads, const std::vector<Curve>& curves,
                  const TimeAxis& axis) {
  std::size_t most = 1;
  for (const Load& load : loads) {
    for (const Curve& curve : curves) most = std::max(most, curve.value(load));
  }
  const double top = 8;
  std::string text = axis.grid(top, top + kChartHeight);
  const auto y = [&](std::size_t value) {
    return top + kChartHeight * (1 - static_cast<double>(value) / static_cast<double>(most));
  };
  for (const std::size_t value : {std::size_t{0}, most})
    text +=
        fmt::format(R"(<text x="{}" y="{:.1f}" text-anchor="end">{}</text>)", kLeft - 6, y(value) + 4, value);
  std::string keys;
  for (const Curve& curve : curves) {
    text += fmt::format("\n<polyline class=\"curve\" style=\"stroke:var(--{})\" points=\"", curve.colour);
    for (const Load& load : loads)
      text += fmt::format("{:.2f},{:.1f} ", axis.x(load.at), y(curve.value(load)));
    text += "\"/>";
    keys += key(curve.colour, curve.name);
  }
  return fmt::format("<h2>{}{}</h2>\n", label, keys) + svg(top + kChartHeight + 20, label, text + "\n");
}

// What pointing at a lane shows.
std::string lane_title(const TraceRequest& asked, const RequestRecord& record) {
  std::string title =
      fmt::format("request {}: {}, {} prompt tokens ({} cached), {} output tokens", asked.id, outcome(record),
                  record.prompt_tokens, record.cached_tokens, record.output_tokens());
  if (!asked.tenant.empty()) title += fmt::format(", tenant {}", asked.tenant);
  if (record.preemptions > 0) title += fmt::format(", preempted {} times", record.preemptions);
  const Nanoseconds due = record.due.value_or(Nanoseconds(0));
  title += fmt::format("; due {:.3f} s", seconds(due));
  if (record.first_token) title += fmt::format(", TTFT {:.3f} s", seconds(*record.first_token - due));
  if (record.ended) title += fmt::format(", ended {:.3f} s", seconds(*record.ended));
  return html_escaped(title);
}

// One request: waiting, prompt with its cached share, answers, and a mark where it did not end by itself.
std::string lane(const TraceRequest& asked, const RequestRecord& record, double top, double height,
                 Nanoseconds wall, const TimeAxis& axis) {
  const double thickness = height * 0.8;
  std::string text;
  const auto bar = [&](const char* style, double from, double to) {
    if (to > from) {
      text += fmt::format(R"(<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>)", style,
                          from, top, to - from, thickness);
    }
  };
  const double due = axis.x(record.due.value_or(Nanoseconds(0)));
  const double end = axis.x(record.ended.value_or(wall));
  const double started = record.started ? axis.x(*record.started) : end;
  const double first = record.first_token ? axis.x(*record.first_token) : end;
  const double cached =
      record.prompt_tokens == 0 ? 0 : double{1} * record.cached_tokens / record.prompt_tokens;
  const double seam = started + (first - started) * cached;
  bar("queue", due, started);
  bar("cached", started, seam);
  bar("prefill", seam, first);
  bar("decode", first, end);
  if (outcome(record) != "finished") bar("end", end, end + 3);
  if (height >= kLabelledLane) {
    text += fmt::format(R"(<text x="{}" y="{:.2f}" text-anchor="end">{}</text>)", kLeft - 6,
                        top + thickness - 1, asked.id);
  }
  return fmt::format("<g><title>{}</title>{}</g>\n", lane_title(asked, record), text);
}

std::string lanes(const Report& report, const TimeAxis& axis) {
  const std::vector<RequestRecord>& records = report.record->requests;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].due && records[i].prompt_tokens > 0) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return *records[i].due; });
  const std::size_t stride = std::max<std::size_t>(1, (order.size() + kMostLanes - 1) / kMostLanes);
  const std::size_t shown = (order.size() + stride - 1) / stride;
  const double height = shown <= 100 ? kLabelledLane : shown <= 500 ? 7 : 3;
  const double top = 6;
  std::string text = axis.grid(top, top + height * static_cast<double>(shown));
  for (std::size_t i = 0; i < shown; ++i) {
    const std::size_t request = order[i * stride];
    text += lane(report.trace->requests[request], records[request], top + height * static_cast<double>(i),
                 height, report.record->wall, axis);
  }
  std::string head = "<h2>Requests" + key("queue", "queue") + key("cached", "prompt, cached share") +
                     key("prefill", "prompt") + key("decode", "answer") + key("end", "not finished") +
                     "</h2>\n";
  if (stride > 1) {
    head += fmt::format("<p class=\"note\">{} of {} requests: one in {} by time of arrival.</p>\n", shown,
                        order.size(), stride);
  }
  return head + svg(top + height * static_cast<double>(shown) + 20, "a lane a request", text);
}

std::string latency_row(const char* name, const Percentiles& values) {
  std::string row = fmt::format("<tr><td>{}</td>", name);
  for (const double value : {values.p50, values.p90, values.p95, values.p99, values.max})
    row += fmt::format("<td>{:.1f}</td>", 1e3 * value);
  return row + "</tr>\n";
}

std::string head(const Report& report) {
  const Conditions& c = *report.conditions;
  const Summary& s = report.summary;
  std::string text = "<h1>Replay</h1>\n";
  if (!report.record->complete) text += "<p><strong>Interrupted: this is the part that ran.</strong></p>\n";
  text += fmt::format("<p>{} on {}, trace {}", html_escaped(c.model), html_escaped(c.device),
                      html_escaped(c.trace));
  if (!c.note.empty()) text += fmt::format(" <span class=\"note\">({})</span>", html_escaped(c.note));
  text += fmt::format(
      ".<br>Batches of {} sequences and {} tokens, {} KV blocks of {} tokens in {}, prefix cache {}.",
      c.limits.max_batch_size, c.limits.max_batch_tokens, c.kv_blocks, c.limits.block_size,
      html_escaped(c.kv_dtype), c.prefix_caching ? "on" : "off");
  text += fmt::format(
      "<br>{} of {} requests finished in {:.3f} s; {} prompt tokens, {:.1f} % of them cached; {} output "
      "tokens; {} preemptions, {} blocks evicted.</p>\n",
      s.finished, s.requests, s.wall_seconds, s.prompt_tokens, 100 * s.token_hit_rate(), s.output_tokens,
      report.record->counts.scheduler.preempted, report.record->counts.prefix.evicted_blocks);
  text += "<table><tr><th>ms</th><th>p50</th><th>p90</th><th>p95</th><th>p99</th><th>max</th></tr>\n";
  text += latency_row("time to first token", s.ttft) + latency_row("between tokens", s.inter_token) +
          latency_row("in the queue", s.queue) + latency_row("end to end", s.end_to_end);
  return text + "</table>\n";
}

}  // namespace

std::string timeline_html(const Report& report) {
  const TimeAxis axis(seconds(report.record->wall));
  const std::vector<Load>& loads = report.record->load.points();
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>metrale replay: {}</title>\n<style>{}</style>\n</head>\n<body>\n",
      html_escaped(report.conditions->trace), kStyle);
  page += head(report);
  page += chart("Sequences", loads,
                {{"running", "prefill", [](const Load& load) { return load.running; }},
                 {"waiting", "decode", [](const Load& load) { return load.waiting; }}},
                axis);
  page += chart("KV blocks", loads,
                {{"held by running sequences", "prefill", [](const Load& load) { return load.held_blocks; }},
                 {"free", "decode", [](const Load& load) { return load.free_blocks; }},
                 {"in the prefix cache", "cached", [](const Load& load) { return load.cached_blocks; }}},
                axis);
  page += lanes(report, axis);
  return page + "</body>\n</html>\n";
}

}  // namespace metrale::replay
