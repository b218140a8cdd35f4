// SPDX-License-Identifier: Apache-2.0
// The report as a page.
#include "../html.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include <fmt/format.h>

#include "chart.h"
#include "report.h"

namespace metrale::quant_report {

using app::html_escaped;
using quant::KvFormat;

namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --ink: #1d2433; --soft: #667085; --line: #dde1e9; --page: #ffffff; --band: #f5f6f9;
  --bf16: #667085; --fp32: #8a93a5; --fp16: #8a93a5; --fp8: #2f6fd0; --nvfp4: #c96a04; --nvfp4_searched: #8f4a06;
  --turbo4: #0b8558; --turbo3: #63890a; --turbo2: #c2304a; --turbo8: #7c4fe0; --turbo8i: #0b8496; --pair: #b03a86; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9f0; --soft: #9aa3b5; --line: #2d3342; --page: #151922;
  --band: #1c212d; --bf16: #aab3c5; --fp32: #8a93a5; --fp16: #8a93a5; --fp8: #6ba1f0; --nvfp4: #f0a043;
  --nvfp4_searched: #d8843c; --turbo4: #3fc493; --turbo3: #a9cf4d; --turbo2: #f0768b; --turbo8: #ab8df5;
  --turbo8i: #45c1d2; --pair: #e68ac6; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2em auto;
  max-width: 1200px; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.15em; margin: 1.8em 0 .3em; } h3 { font-size: 1em; margin: 1.3em 0 .3em; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .15em .8em .15em 0; text-align: right; font-weight: normal; white-space: nowrap; }
th { color: var(--soft); } td:first-child, th:first-child { text-align: left; }
tbody tr:nth-child(even) { background: var(--band); } .best { font-weight: 600; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); stroke-width: .6; } .curve { fill: none; stroke-width: 1.5; }
.leader { stroke: var(--line); stroke-width: .8; } circle { stroke-width: 1.6; }
.note, dd { color: var(--soft); } dt { float: left; clear: left; width: 11em; } dd { margin-left: 11em; }
summary { cursor: pointer; margin-top: 1em; }
)";

std::string colour_of(KvFormat format) {
  return std::string(to_string(format));
}

// Three digits, in thousandths where that is how such figures are read.
std::string figure(double value, double unit = 1) {
  return std::isfinite(value) ? fmt::format("{:.3g}", value / unit) : "–";
}

// Rows of figures under a head; the first cell of each is its name.
struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;

  [[nodiscard]] std::string html() const {
    std::string text = "<div class=\"wide\"><table><thead><tr>";
    for (const std::string& cell : head) text += fmt::format("<th>{}</th>", html_escaped(cell));
    text += "</tr></thead>\n<tbody>\n";
    for (const auto& row : rows) {
      text += "<tr>";
      for (const std::string& cell : row) text += fmt::format("<td>{}</td>", html_escaped(cell));
      text += "</tr>\n";
    }
    return text + "</tbody></table></div>\n";
  }
};

// What a column of the tables of attention holds.
struct Column {
  std::string name;
  const std::vector<AttentionError>* errors;
};

struct Measure {
  const char* title;
  const char* note;
  double AttentionError::* value;
  double unit;
  bool of_keys;  // values have no part in it
};

constexpr Measure kMeasures[] = {
    {"Error of the logits",
     "Root mean square of the differences of the scores ⟨q, k⟩ / √d, which values "
     "have no part in.",
     &AttentionError::logit_rmse, 1, true},
    {"KL divergence of the weights, 1e-3 nats", "Of softmax over the keys, mean over the queries.",
     &AttentionError::kl, 1e-3, true},
    {"Error of the output, 1e-3", "|o − o′|² / |o|² of what attention gives.", &AttentionError::output, 1e-3,
     false},
};

bool shows(const Measure& measure, Group group) {
  return !measure.of_keys || group == Group::kBoth || group == Group::kEqualised;
}

std::string attention_table(const Measure& measure, std::uint32_t head_dim, std::span<const Column> columns) {
  Table table{.head = {"", "bits"}, .rows = {}};
  for (const Column& column : columns) table.head.push_back(column.name);
  const std::vector<Variant> variants = variants_for(head_dim);
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (!shows(measure, variants[i].group)) continue;
    std::vector<std::string> row{variants[i].name, figure(bits_per_element(variants[i], head_dim))};
    for (const Column& column : columns)
      row.push_back(figure((*column.errors)[i].*measure.value, measure.unit));
    table.rows.push_back(std::move(row));
  }
  return table.html();
}

// Lines of the formats and of what equalises them.
std::string attention_lines(const Measure& measure, std::uint32_t head_dim, std::span<const Column> columns) {
  std::vector<std::string> places;
  for (const Column& column : columns) places.push_back(column.name);
  const std::vector<Variant> variants = variants_for(head_dim);
  std::vector<Line> lines;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const Variant& variant = variants[i];
    if (variant.group != Group::kBoth && variant.group != Group::kEqualised) continue;
    Line line{.label = variant.name,
              .colour = colour_of(variant.dtype.k),
              .dashed = variant.group == Group::kEqualised,
              .errors = {}};
    for (const Column& column : columns) line.errors.push_back((*column.errors)[i].*measure.value);
    lines.push_back(std::move(line));
  }
  return line_chart(measure.title, places, lines);
}

std::string attention_scatter(std::uint32_t head_dim, const std::vector<AttentionError>& errors) {
  const std::vector<Variant> variants = variants_for(head_dim);
  std::vector<Mark> marks;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (variants[i].group != Group::kBoth && variants[i].group != Group::kPair) continue;
    const bool is_pair = variants[i].group == Group::kPair;
    marks.push_back({.bits = bits_per_element(variants[i], head_dim),
                     .error = errors[i].output,
                     .label = variants[i].name,
                     .colour = is_pair ? "pair" : colour_of(variants[i].dtype.k),
                     .hollow = is_pair});
  }
  return scatter_chart("relative error of attention's output against bits an element", marks);
}

struct NmseColumn {
  std::string name;
  const std::vector<Nmse>* errors;
};

std::string nmse_table(double Nmse::* side, std::uint32_t head_dim, std::span<const NmseColumn> columns) {
  Table table{.head = {"1e-3", "bits"}, .rows = {}};
  for (const NmseColumn& column : columns) table.head.push_back(column.name);
  const std::vector<KvFormat> formats = formats_for(head_dim);
  for (std::size_t i = 0; i < formats.size(); ++i) {
    std::vector<std::string> row{std::string(to_string(formats[i])),
                                 figure(bits_per_element(formats[i], head_dim))};
    for (const NmseColumn& column : columns) row.push_back(figure((*column.errors)[i].*side, 1e-3));
    table.rows.push_back(std::move(row));
  }
  return table.html();
}

std::string nmse_lines(const char* description, double Nmse::* side, std::uint32_t head_dim,
                       std::span<const NmseColumn> columns) {
  std::vector<std::string> places;
  for (const NmseColumn& column : columns) places.push_back(column.name);
  const std::vector<KvFormat> formats = formats_for(head_dim);
  std::vector<Line> lines;
  for (std::size_t i = 0; i < formats.size(); ++i) {
    Line line{.label = std::string(to_string(formats[i])), .colour = colour_of(formats[i]), .errors = {}};
    for (const NmseColumn& column : columns) line.errors.push_back((*column.errors)[i].*side);
    lines.push_back(std::move(line));
  }
  return line_chart(description, places, lines);
}

std::string nmse_scatter(std::uint32_t head_dim, const std::vector<Nmse>& errors) {
  std::vector<Mark> marks;
  for (const Nmse& error : errors) {
    marks.push_back({.bits = bits_per_element(error.format, head_dim),
                     .error = error.keys,
                     .label = std::string(to_string(error.format)),
                     .colour = colour_of(error.format)});
  }
  return scatter_chart("error of Gaussian keys against bits an element", marks);
}

std::string ratios(const std::vector<Nmse>& gaussian) {
  const auto plain = nvfp4_over_turbo4(gaussian);
  const auto searched = nvfp4_over_turbo4(gaussian, KvFormat::kNvfp4Searched);
  if (!plain || !searched) return {};
  return fmt::format(
      "<p>At the same bits turbo4's error is {:.2f} (keys) and {:.2f} (values) times smaller than that of "
      "nvfp4 with scales from the largest magnitude, {:.2f} and {:.2f} times than with searched ones.</p>\n",
      plain->keys, plain->values, searched->keys, searched->values);
}

std::string reconstruction(const SyntheticErrors& synthetic) {
  const std::uint32_t head_dim = synthetic.options.head_dim;
  std::vector<NmseColumn> columns;
  for (std::size_t i = 0; i < kKinds.size(); ++i)
    columns.push_back({std::string(kKinds[i].name), &synthetic.nmse[i]});
  std::string text = fmt::format(
      "<h2>Reconstruction</h2>\n<p class=\"note\">|x − x′|² / |x|² over {} vectors of {} "
      "dimensions.</p>\n<h3>Gaussian keys, error against bits an element</h3>\n",
      synthetic.options.vectors, head_dim);
  text += nmse_scatter(head_dim, synthetic.nmse.front()) + ratios(synthetic.nmse.front());
  text += "<h3>Keys</h3>\n" + nmse_lines("error of keys by kind of data", &Nmse::keys, head_dim, columns) +
          nmse_table(&Nmse::keys, head_dim, columns);
  text += "<h3>Values</h3>\n" + nmse_table(&Nmse::values, head_dim, columns) + "<dl>\n";
  for (const KindInfo& kind : kKinds)
    text += fmt::format("<dt>{}</dt><dd>{}</dd>\n", kind.name, html_escaped(kind.what));
  return text + "</dl>\n";
}

std::string attention(const SyntheticErrors& synthetic) {
  const std::uint32_t head_dim = synthetic.options.head_dim;
  std::vector<Column> columns;
  for (std::size_t i = 0; i < kScenes.size(); ++i)
    columns.push_back({std::string(kScenes[i].name), &synthetic.attention[i]});
  std::string text = fmt::format(
      "<h2>Attention</h2>\n<p class=\"note\">{} queries over {} keys of the kind that is named and values "
      "of the kind v_like; logits with a standard deviation of {}. “white”: queries make little of the "
      "channels in which keys are large, as trained ones do. “equaliser”: each channel of the keys is "
      "divided, and that of the queries multiplied, by √(deviation of the keys / size of the queries) "
      "before the rotation.</p>\n<h3>Gaussian keys, error of the output against bits an element</h3>\n",
      synthetic.options.queries, synthetic.options.keys, kLogitStd);
  text += attention_scatter(head_dim, synthetic.attention.front());
  for (const Measure& measure : kMeasures) {
    text += fmt::format("<h3>{}</h3>\n<p class=\"note\">{}</p>\n", measure.title, measure.note);
    text += attention_lines(measure, head_dim, columns) + attention_table(measure, head_dim, columns);
  }
  return text;
}

std::string model_page(const ModelErrors& model) {
  std::vector<NmseColumn> nmse{{"mean", &model.mean.nmse}};
  std::vector<Column> attention_columns{{"mean", &model.mean.attention}};
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    nmse.push_back({fmt::format("{}", i), &model.layers[i].nmse});
    attention_columns.push_back({fmt::format("{}", i), &model.layers[i].attention});
  }
  const auto layers = std::span(nmse).subspan(1);
  const auto attention_layers = std::span(attention_columns).subspan(1);
  std::string text = fmt::format(
      "<h2>Model</h2>\n<p>{} ({}, {} layers, {} query and {} KV heads of {}) over the first {} tokens of "
      "{}, computed in {} on {}; causal attention of {} positions a query head. A layer's figure is the "
      "mean over its KV heads; “mean” is over the layers.</p>\n",
      html_escaped(model.model), html_escaped(model.architecture), model.num_layers, model.num_q_heads,
      model.num_kv_heads, model.head_dim, model.tokens, html_escaped(model.text), html_escaped(model.compute),
      html_escaped(model.device), model.queries);
  for (const std::string& note : why_not_measured(model.head_dim))
    text += fmt::format("<p class=\"note\">Not measured: {}.</p>\n", html_escaped(note));
  const auto table_of_layers = [](const std::string& table) {
    return "<details><summary>by layer</summary>\n" + table + "</details>\n";
  };
  text += "<h3>Error of the output against bits an element</h3>\n" +
          attention_scatter(model.head_dim, model.mean.attention);
  for (const auto& [title, side] : {std::pair{"Reconstruction of keys, by layer", &Nmse::keys},
                                    std::pair{"Reconstruction of values, by layer", &Nmse::values}}) {
    text += fmt::format("<h3>{}</h3>\n", title) + nmse_lines(title, side, model.head_dim, layers) +
            nmse_table(side, model.head_dim, std::span(nmse).first(1)) +
            table_of_layers(nmse_table(side, model.head_dim, layers));
  }
  for (const Measure& measure : kMeasures) {
    text += fmt::format("<h3>{}, by layer</h3>\n", measure.title) +
            attention_lines(measure, model.head_dim, attention_layers) +
            attention_table(measure, model.head_dim, std::span(attention_columns).first(1)) +
            table_of_layers(attention_table(measure, model.head_dim, attention_layers));
  }
  return text;
}

}  // namespace

std::string to_html(const Report& report) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n"
      "<meta name=\"generator\" content=\"metrale quant-report\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>metrale quant-report</title>\n<style>{}</style>\n</head>\n<body>\n",
      kStyle);
  page += fmt::format(
      "<h1>What the formats of the KV cache cost in accuracy</h1>\n<p class=\"note\">metrale {}, seed {}. "
      "Bits an element count codes and headers.</p>\n",
      html_escaped(report.version), report.synthetic.options.seed);
  for (const std::string& note : why_not_measured(report.synthetic.options.head_dim))
    page += fmt::format("<p class=\"note\">Not measured: {}.</p>\n", html_escaped(note));
  if (report.model) page += model_page(*report.model);
  page += reconstruction(report.synthetic) + attention(report.synthetic);
  return page + "</body>\n</html>\n";
}

}  // namespace metrale::quant_report
