// SPDX-License-Identifier: Apache-2.0
// metrale calibrate: what a model's KV cache should know of its keys and values, as a file for
// --kv-calibration.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/checked.h>
#include <metrale/base/clock.h>
#include <metrale/base/error.h>
#include <metrale/engine/kv_calibrator.h>
#include <metrale/engine/tokenizer.h>
#include <metrale/gpu/resource.h>

#include "commands.h"
#include "engine_flags.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"
#include "prompts.h"

namespace metrale::app {
namespace {

using nlohmann::ordered_json;

struct CalibrateFlags {
  std::string model;
  std::string file;
  std::string output;
  std::uint32_t tokens = 8192;
  std::uint32_t window = 2048;
  std::optional<double> budget;
  std::uint32_t budget_tokens = 512;
  std::string budget_formats;
  bool no_equaliser = false;
  bool json = false;
  EngineFlags engine;
  DeviceFlags device;
};

std::vector<quant::KvFormat> parse_formats(const std::string& list) {
  std::vector<quant::KvFormat> formats;
  for (std::size_t at = 0; at <= list.size() && !list.empty();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string name = list.substr(at, end - at);
    const auto format = quant::parse_kv_format(name);
    if (!format) throw InvalidArgument(fmt::format("--budget-formats: '{}' is no KV format", name));
    formats.push_back(*format);
    at = end + 1;
  }
  return formats;
}

std::vector<std::int32_t> read_tokens(const CalibrateFlags& flags, const engine::Tokenizer& tokenizer) {
  const std::string text = read_source(flags.file);
  std::vector<std::int32_t> tokens = tokenizer.encode(text);
  if (tokens.size() < 2) {
    throw InvalidArgument(
        fmt::format("--file: '{}' has {} tokens; a calibration needs two at least, and is "
                    "better with thousands",
                    flags.file, tokens.size()));
  }
  if (tokens.size() > flags.tokens) tokens.resize(flags.tokens);
  return tokens;
}

ordered_json budget_json(const engine::KvBudget& budget, const engine::KvCalibration& calibration) {
  ordered_json layers = ordered_json::array();
  for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
    ordered_json layer{{"kv_dtype", quant::to_string(calibration.layers[i].dtype.value_or(quant::KvDtype{}))},
                       {"high_precision", calibration.layers[i].high_precision}};
    for (std::size_t f = 0; f < budget.formats.size(); ++f) {
      const std::string name(quant::to_string(budget.formats[f]));
      layer["kl_divergence_k"][name] = budget.divergences[i][0][f];
      layer["kl_divergence_v"][name] = budget.divergences[i][1][f];
    }
    layers.push_back(std::move(layer));
  }
  return {{"mean_bits", budget.mean_bits}, {"mean_kl_divergence", budget.divergence}, {"layers", layers}};
}

void print_summary(const CalibrateFlags& flags, const engine::KvCalibration& calibration,
                   const std::optional<engine::KvBudget>& budget) {
  Output out("");
  if (flags.json) {
    ordered_json json{{"model", flags.model},
                      {"tokens", calibration.tokens},
                      {"layers", calibration.layers.size()},
                      {"output", flags.output}};
    if (budget) json["budget"] = budget_json(*budget, calibration);
    out.write(json.dump() + "\n");
    return;
  }
  std::string text =
      fmt::format("calibrated      {} layers of {} KV heads of {} on {} tokens\n", calibration.layers.size(),
                  calibration.num_kv_heads, calibration.head_dim, calibration.tokens);
  if (budget) {
    for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
      const engine::KvLayerCalibration& layer = calibration.layers[i];
      text += fmt::format("layer {:<10}{}{}\n", i, quant::to_string(layer.dtype.value_or(quant::KvDtype{})),
                          layer.high_precision ? ", sensitive" : "");
    }
    text += fmt::format("bits            {:.3f} an element\n", budget->mean_bits);
    text += fmt::format("KL divergence   {:.6f} nats a token from the bf16 cache, on {} tokens\n",
                        budget->divergence, flags.budget_tokens);
  }
  out.write(text);
}

int calibrate(const CalibrateFlags& flags, const runtime::Environment& environment) {
  const std::vector<quant::KvFormat> formats = parse_formats(flags.budget_formats);
  expects(flags.budget || formats.empty(), "--budget-formats goes with --budget");
  const engine::ModelConfig config = engine::load_model_config(flags.model);
  const engine::Tokenizer tokenizer =
      engine::Tokenizer::load((std::filesystem::path(flags.model) / "tokenizer.json").string());
  const std::vector<std::int32_t> tokens = read_tokens(flags, tokenizer);
  const std::uint32_t window = std::min(flags.window, config.max_positions());
  Output output(flags.output);
  const auto backend = runtime::open_backend(backend_options(flags.device, environment));

  engine::KvBudgetRequest budget_request{
      .tokens = std::span(tokens).first(std::min<std::size_t>({tokens.size(), flags.budget_tokens, window})),
      .mean_bits = flags.budget.value_or(0),
      .formats = formats,
      .progress = {}};
  if (flags.budget) engine::check_kv_budget(*backend, config, budget_request);

  const auto progress_on = [](ProgressLine& line) {
    return [&line](std::uint64_t done, std::uint64_t total) {
      line.update(done, total);
      return !interrupted();
    };
  };
  ProgressLine loading("loading");
  const auto directory = weights::ModelDirectory::open(flags.model);
  const quant::ElementType compute =
      compute_type(flags.engine).value_or(engine::default_compute(config, directory));
  weights::LoadOptions load = load_options(flags.engine);
  load.progress = progress_on(loading);
  engine::ModelWeights weights(*backend, config, directory, compute, load);
  loading.clear();
  const engine::KvModel model{*backend, config, weights, compute};
  ProgressLine measuring("measuring");
  engine::KvCalibration calibration = engine::calibrate_kv(model, {.tokens = tokens,
                                                                   .window = window,
                                                                   .equaliser = !flags.no_equaliser,
                                                                   .progress = progress_on(measuring)});
  measuring.clear();
  std::optional<engine::KvBudget> budget;
  if (flags.budget) {
    ProgressLine choosing("choosing formats");
    budget_request.progress = progress_on(choosing);
    budget = engine::choose_kv_formats(model, budget_request, calibration);
  }
  gpu::Teardown teardown;
  teardown.add(weights);
  teardown.release_all(*backend);
  output.write(engine::to_json(calibration));
  output.commit();
  print_summary(flags, calibration, budget);
  return kOk;
}

}  // namespace

Action add_calibrate(CLI::App& command, const runtime::Environment& environment) {
  const auto flags = std::make_shared<CalibrateFlags>();
  command
      .add_option("-m,--model,model", flags->model,
                  "Model directory (config.json, safetensors, tokenizer.json)")
      ->required();
  command.add_option("-f,--file", flags->file, "Text to measure on (- is standard input)")->required();
  command.add_option("-o,--output", flags->output, "File that is written, for --kv-calibration")->required();
  command.add_option("--tokens", flags->tokens, "Most tokens of the text that are used")
      ->check(CLI::Range(2U, 1U << 30))
      ->capture_default_str();
  command.add_option("--window", flags->window, "Tokens that are run together")
      ->check(CLI::Range(2U, 1U << 30))
      ->capture_default_str();
  command
      .add_option("--budget", flags->budget,
                  "Choose a format for each side of each layer, so that an element takes so many bits on "
                  "average (such as 4.0), by the KL divergence that each costs")
      ->check(CLI::Range(1.0, 32.0));
  command.add_option("--budget-tokens", flags->budget_tokens, "Tokens that the divergence is measured on")
      ->check(CLI::Range(2U, 1U << 20))
      ->capture_default_str();
  command.add_option("--budget-formats", flags->budget_formats,
                     "Formats to choose from (default: turbo2,turbo3,turbo4,turbo8i)");
  command.add_flag("--no-equaliser", flags->no_equaliser, "Measure ranges alone");
  command.add_flag("--json", flags->json, "Print the summary as one JSON object");
  command.add_option("--dtype", flags->engine.dtype, "Computation: auto, bf16 or fp32")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}))
      ->capture_default_str();
  add_device_flags(command, flags->device);
  return [flags, environment] { return calibrate(*flags, environment); };
}

}  // namespace metrale::app
