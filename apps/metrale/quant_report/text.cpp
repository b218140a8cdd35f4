// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "report.h"

namespace metrale::quant_report {
namespace {

std::string ratio_line(const char* name, const std::optional<Ratio>& ratio) {
  if (!ratio) return {};
  return fmt::format("{:<26}{:.2f} (keys), {:.2f} (values)\n", name, ratio->keys, ratio->values);
}

std::string model_text(const ModelErrors& model) {
  const std::vector<Variant> variants = variants_for(model.head_dim);
  std::string text =
      fmt::format("\n{}, {} tokens of {}, mean of {} layers\n{:<20}{:>8}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
                  model.model, model.tokens, model.text, model.num_layers, "format", "bits", "NMSE K",
                  "NMSE V", "logit RMSE", "KL", "output");
  std::size_t format = 0;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const AttentionError& error = model.mean.attention[i];
    std::string nmse = fmt::format("{:>12}{:>12}", "", "");
    if (variants[i].group == Group::kBoth) {
      const Nmse& own = model.mean.nmse[format++];
      nmse = fmt::format("{:>12.3e}{:>12.3e}", own.keys, own.values);
    } else if (variants[i].group == Group::kKeys || variants[i].group == Group::kValues) {
      continue;
    }
    text += fmt::format("{:<20}{:>8.3f}{}{:>12.3e}{:>12.3e}{:>12.3e}\n", variants[i].name,
                        bits_per_element(variants[i], model.head_dim), nmse, error.logit_rmse, error.kl,
                        error.output);
  }
  for (const std::string& note : why_not_measured(model.head_dim)) text += note + "\n";
  return text;
}

}  // namespace

std::string to_text(const Report& report) {
  const SyntheticOptions& options = report.synthetic.options;
  const std::vector<Nmse>& gaussian = report.synthetic.nmse.front();
  std::string text = fmt::format("{} Gaussian vectors of {}\n{:<20}{:>8}{:>12}{:>12}\n", options.vectors,
                                 options.head_dim, "format", "bits", "NMSE K", "NMSE V");
  for (const Nmse& error : gaussian) {
    text += fmt::format("{:<20}{:>8.3f}{:>12.3e}{:>12.3e}\n", to_string(error.format),
                        bits_per_element(error.format, options.head_dim), error.keys, error.values);
  }
  text += ratio_line("nvfp4 / turbo4", nvfp4_over_turbo4(gaussian));
  text += ratio_line("nvfp4_searched / turbo4", nvfp4_over_turbo4(gaussian, quant::KvFormat::kNvfp4Searched));
  for (const std::string& note : why_not_measured(options.head_dim)) text += note + "\n";
  if (report.model) text += model_text(*report.model);
  return text;
}

}  // namespace metrale::quant_report
