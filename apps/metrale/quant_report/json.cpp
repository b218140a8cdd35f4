// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <nlohmann/json.hpp>

#include "report.h"

namespace metrale::quant_report {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kMark = R"("metrale_quant_report")";
constexpr std::string_view kHtmlMark = R"(content="metrale quant-report")";
constexpr std::size_t kMarkWithin = 400;  // bytes from the beginning

// Names of files and models are whatever the user called them.
std::string dumped(const ordered_json& json) {
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void add_nmse(const ordered_json& where, const std::vector<Nmse>& errors, ordered_json& rows) {
  for (const Nmse& error : errors) {
    ordered_json row = where;
    row["format"] = to_string(error.format);
    row["keys"] = error.keys;
    row["values"] = error.values;
    rows.push_back(std::move(row));
  }
}

void add_attention(const ordered_json& where, const std::vector<AttentionError>& errors,
                   std::uint32_t head_dim, ordered_json& rows) {
  const std::vector<Variant> variants = variants_for(head_dim);
  for (std::size_t i = 0; i < errors.size(); ++i) {
    ordered_json row = where;
    row["name"] = variants[i].name;
    row["group"] = to_string(variants[i].group);
    row["k"] = to_string(variants[i].dtype.k);
    row["v"] = to_string(variants[i].dtype.v);
    row["bits_per_element"] = bits_per_element(variants[i], head_dim);
    row["logit_rmse"] = errors[i].logit_rmse;
    row["kl"] = errors[i].kl;
    row["output_error"] = errors[i].output;
    rows.push_back(std::move(row));
  }
}

ordered_json formats_json(std::uint32_t head_dim) {
  ordered_json formats = ordered_json::array();
  for (const quant::KvFormat format : formats_for(head_dim)) {
    const quant::KvFormatInfo& info = quant::kv_format_info(format);
    formats.push_back({{"name", info.name},
                       {"bits_per_element", bits_per_element(format, head_dim)},
                       {"rotated", info.rotated},
                       {"scaled", info.scaled}});
  }
  return formats;
}

ordered_json head_json(const HeadErrors& errors, std::uint32_t head_dim) {
  ordered_json json{{"nmse", ordered_json::array()}, {"attention", ordered_json::array()}};
  add_nmse(ordered_json::object(), errors.nmse, json["nmse"]);
  add_attention(ordered_json::object(), errors.attention, head_dim, json["attention"]);
  return json;
}

ordered_json model_json(const ModelErrors& model) {
  ordered_json json{{"model", model.model},
                    {"text", model.text},
                    {"architecture", model.architecture},
                    {"device", model.device},
                    {"dtype", model.compute},
                    {"layers", model.num_layers},
                    {"q_heads", model.num_q_heads},
                    {"kv_heads", model.num_kv_heads},
                    {"head_dim", model.head_dim},
                    {"tokens", model.tokens},
                    {"queries", model.queries},
                    {"formats", formats_json(model.head_dim)},
                    {"not_measured", why_not_measured(model.head_dim)},
                    {"mean", head_json(model.mean, model.head_dim)},
                    {"by_layer", ordered_json::array()}};
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    ordered_json layer{{"layer", i}};
    layer.update(head_json(model.layers[i], model.head_dim));
    json["by_layer"].push_back(std::move(layer));
  }
  return json;
}

ordered_json ratio_json(const std::optional<Ratio>& ratio) {
  return ratio ? ordered_json{{"keys", ratio->keys}, {"values", ratio->values}} : ordered_json(nullptr);
}

ordered_json summary(const Report& report) {
  const SyntheticErrors& synthetic = report.synthetic;
  const std::vector<Nmse>& gaussian = synthetic.nmse.front();
  ordered_json json{{"data", kKinds.front().name},
                    {"head_dim", synthetic.options.head_dim},
                    {"vectors", synthetic.options.vectors},
                    {"formats", ordered_json::array()}};
  for (const Nmse& error : gaussian) {
    json["formats"].push_back(
        {{"format", to_string(error.format)},
         {"bits_per_element", bits_per_element(error.format, synthetic.options.head_dim)},
         {"nmse_keys", error.keys},
         {"nmse_values", error.values}});
  }
  json["nvfp4_over_turbo4"] = ratio_json(nvfp4_over_turbo4(gaussian));
  json["nvfp4_searched_over_turbo4"] =
      ratio_json(nvfp4_over_turbo4(gaussian, quant::KvFormat::kNvfp4Searched));
  return json;
}

}  // namespace

std::string to_json(const Report& report) {
  const SyntheticOptions& options = report.synthetic.options;
  ordered_json json{{"metrale_quant_report", 1},
                    {"version", report.version},
                    {"options",
                     {{"head_dim", options.head_dim},
                      {"vectors", options.vectors},
                      {"keys", options.keys},
                      {"queries", options.queries},
                      {"seed", options.seed}}},
                    {"conditions",
                     {{"logit_std", kLogitStd},
                      {"values_of_scenes", kind_info(Kind::kVLike).name},
                      {"scale_headroom", 2},
                      {"sign_seed", 42}}},
                    {"summary", summary(report)},
                    {"formats", formats_json(options.head_dim)},
                    {"not_measured", why_not_measured(options.head_dim)},
                    {"data", ordered_json::array()},
                    {"nmse", ordered_json::array()},
                    {"attention", ordered_json::array()}};
  for (const KindInfo& kind : kKinds) json["data"].push_back({{"name", kind.name}, {"what", kind.what}});
  for (std::size_t i = 0; i < kKinds.size(); ++i)
    add_nmse({{"data", kKinds[i].name}}, report.synthetic.nmse[i], json["nmse"]);
  for (std::size_t i = 0; i < kScenes.size(); ++i)
    add_attention({{"data", kScenes[i].name}}, report.synthetic.attention[i], options.head_dim,
                  json["attention"]);
  json["model"] = report.model ? model_json(*report.model) : ordered_json(nullptr);
  return dumped(json);
}

std::string summary_json(const Report& report) {
  return dumped(summary(report));
}

bool is_report(std::string_view text) {
  const std::string_view head = text.substr(0, kMarkWithin);
  return head.find(kMark) != std::string_view::npos || head.find(kHtmlMark) != std::string_view::npos;
}

std::optional<Ratio> nvfp4_over_turbo4(const std::vector<Nmse>& errors, quant::KvFormat nvfp4) {
  const auto find = [&](quant::KvFormat format) { return std::ranges::find(errors, format, &Nmse::format); };
  const auto top = find(nvfp4);
  const auto bottom = find(quant::KvFormat::kTurbo4);
  if (top == errors.end() || bottom == errors.end()) return std::nullopt;
  return Ratio{top->keys / bottom->keys, top->values / bottom->values};
}

}  // namespace metrale::quant_report
