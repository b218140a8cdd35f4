// SPDX-License-Identifier: Apache-2.0
// metrale plan: what a model takes of a device's memory, and how many sequences fit.
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/error.h>
#include <metrale/engine/memory_plan.h>

#include "commands.h"
#include "engine_flags.h"
#include "exit_codes.h"
#include "output.h"

namespace metrale::app {
namespace {

using nlohmann::ordered_json;

struct PlanFlags {
  std::string model;
  std::string memory;
  std::uint32_t max_seq_len = 0;
  std::uint32_t max_batch_size = 1;
  EngineFlags engine;
  std::string device = "cpu";
  bool json = false;
};

// The tensors say what they are; a directory that has only its configuration is planned by that.
std::optional<weights::ModelDirectory> open_weights(const std::string& path) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") return weights::ModelDirectory::open(path);
  }
  if (error) throw IoError("cannot list", path, error.value());
  return std::nullopt;
}

engine::MemoryPlanRequest plan_request(const PlanFlags& flags) {
  return {.memory_bytes = parse_bytes(flags.memory, "--memory"),
          .limits = {.max_seq_len = flags.max_seq_len,
                     .max_batch_size = flags.max_batch_size,
                     .max_batch_tokens = flags.engine.max_batch_tokens,
                     .block_size = flags.engine.block_size},
          .compute = compute_type(flags.engine),
          .linear_workspace_bytes = flags.device == "cuda" ? gpu::kCudaLinearWorkspaceBytes : 0,
          .on_cpu = flags.device != "cuda"};
}

std::vector<quant::KvDtype> every_kv_dtype() {
  std::vector<quant::KvDtype> all;
  for (const quant::KvFormatInfo& info : quant::kKvFormats) all.push_back({info.format, info.format});
  return all;
}

std::vector<std::string> formats_that_fit(const engine::MemoryPlan& plan) {
  std::vector<std::string> names;
  for (const engine::KvPlan& kv : plan.kv) {
    if (kv.fits && kv.has_kernels) names.push_back(quant::to_string(kv.dtype));
  }
  return names;
}

// In the largest unit that keeps three digits.
std::string size_text(std::uint64_t bytes) {
  constexpr std::array kUnits{"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string sequences_text(std::uint64_t count) {
  return count == 1 ? "1 sequence" : fmt::format("{} sequences", count);
}

template <class Value>
ordered_json or_null(const std::optional<Value>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json kv_json(const engine::KvPlan& kv, const std::vector<std::string>& formats) {
  ordered_json json{{"dtype", quant::to_string(kv.dtype)},
                    {"has_kernels", kv.has_kernels},
                    {"bytes_per_token", kv.bytes_per_token},
                    {"bytes_per_sequence", kv.bytes_per_sequence},
                    {"bytes", kv.bytes},
                    {"total_bytes", kv.total_bytes},
                    {"blocks_that_fit", kv.blocks_that_fit},
                    {"sequences_that_fit", kv.sequences_that_fit},
                    {"fits", kv.fits}};
  if (kv.advice) {
    json["advice"] = {{"max_seq_len", or_null(kv.advice->max_seq_len)},
                      {"max_batch_size", or_null(kv.advice->max_batch_size)},
                      {"max_batch_tokens", or_null(kv.advice->max_batch_tokens)},
                      {"longest_sequence", or_null(kv.advice->longest_sequence)},
                      {"kv_dtypes", formats},
                      {"memory_bytes", kv.total_bytes}};
  }
  return json;
}

ordered_json plan_json(const PlanFlags& flags, const engine::ModelConfig& config,
                       const engine::MemoryPlanRequest& request, const engine::MemoryPlan& plan,
                       const std::vector<std::string>& formats) {
  ordered_json buffers = ordered_json::object();
  for (const gpu::ArenaFieldName& known : gpu::arena_fields()) {
    if (plan.arena.*known.field != 0) buffers[std::string(known.name)] = plan.arena.*known.field;
  }
  ordered_json kv = ordered_json::array();
  for (const engine::KvPlan& one : plan.kv) kv.push_back(kv_json(one, formats));
  return {{"model", flags.model},
          {"architecture", config.architecture},
          {"memory_bytes", request.memory_bytes},
          {"max_seq_len", plan.limits.max_seq_len},
          {"max_batch_size", plan.limits.max_batch_size},
          {"max_batch_tokens", plan.limits.max_batch_tokens},
          {"block_size", plan.limits.block_size},
          {"compute", quant::to_string(plan.compute)},
          {"weights", {{"dtype", quant::to_string(plan.matrix_type)}, {"bytes", plan.weight_bytes}}},
          {"arena", {{"bytes", plan.arena.total_bytes()}, {"buffers", std::move(buffers)}}},
          {"constant_bytes", plan.constant_bytes},
          {"fixed_bytes", plan.fixed_bytes},
          {"pinned_bytes", plan.pinned_bytes},
          {"kv", std::move(kv)}};
}

std::string kv_table(const engine::MemoryPlan& plan) {
  std::string text = fmt::format("\nKV cache for {} of {} tokens, in blocks of {}:\n",
                                 sequences_text(plan.limits.max_batch_size), plan.limits.max_seq_len,
                                 plan.limits.block_size);
  text += fmt::format("  {:14} {:>13} {:>13} {:>13} {:>14}  {}\n", "format", "bytes a token", "a sequence",
                      "all of them", "sequences fit", "");
  for (const engine::KvPlan& kv : plan.kv) {
    text += fmt::format("  {:14} {:13} {:>13} {:>13} {:14}  {}{}\n", quant::to_string(kv.dtype),
                        kv.bytes_per_token, size_text(kv.bytes_per_sequence), size_text(kv.bytes),
                        kv.sequences_that_fit, kv.fits ? "fits" : "does not fit",
                        kv.has_kernels ? "" : " (the engine does not take it here)");
  }
  return text;
}

// What to change for the first format that was asked for, and which other formats would do.
std::string advice_text(const engine::MemoryPlan& plan, std::uint64_t memory_bytes,
                        const std::vector<std::string>& formats) {
  const engine::KvPlan& first = plan.kv.front();
  if (!first.advice) return "";
  std::vector<std::string> changes;
  if (!formats.empty()) changes.push_back(fmt::format("--kv-dtype {}", fmt::join(formats, " or ")));
  if (first.advice->max_seq_len)
    changes.push_back(fmt::format("--max-seq-len {}", *first.advice->max_seq_len));
  if (first.advice->max_batch_size) {
    changes.push_back(fmt::format("--max-batch-size {}", *first.advice->max_batch_size));
  }
  if (first.advice->max_batch_tokens) {
    changes.push_back(fmt::format("--max-batch-tokens {}", *first.advice->max_batch_tokens));
  }
  std::string text = fmt::format("\nWith {} in {} the model needs {}, {} more than there is. ",
                                 sequences_text(plan.limits.max_batch_size), quant::to_string(first.dtype),
                                 size_text(first.total_bytes), size_text(first.total_bytes - memory_bytes));
  if (!changes.empty()) {
    text += fmt::format("Any one of these makes room:\n  {}\n", fmt::join(changes, "\n  "));
  } else if (plan.weight_bytes > memory_bytes) {
    text += fmt::format("The weights alone take {}: no limit makes room.\n", size_text(plan.weight_bytes));
  } else {
    text += "No change of a single limit makes room.\n";
  }
  if (first.sequences_that_fit > 0) {
    text +=
        fmt::format("Or let fewer run at a time: --kv-blocks {} holds {} at full length; the others wait.\n",
                    first.blocks_that_fit, first.sequences_that_fit);
  } else if (first.advice->longest_sequence) {
    text += fmt::format("One sequence alone fits up to --max-seq-len {}.\n", *first.advice->longest_sequence);
  }
  return text;
}

std::string plan_text(const engine::ModelConfig& config, const engine::MemoryPlanRequest& request,
                      const engine::MemoryPlan& plan, const std::vector<std::string>& formats) {
  std::string text = fmt::format("{}, {} layers, computed in {}\n\n", config.architecture, config.num_layers,
                                 quant::to_string(plan.compute));
  const auto row = [&text](std::string_view name, std::uint64_t bytes, std::string_view note = "") {
    text += fmt::format("{:24} {:>16} bytes {:>13}{}\n", name, bytes, size_text(bytes), note);
  };
  row("weights", plan.weight_bytes, fmt::format("  matrices in {}", quant::to_string(plan.matrix_type)));
  row("arena", plan.arena.total_bytes());
  for (const gpu::ArenaFieldName& known : gpu::arena_fields()) {
    if (plan.arena.*known.field != 0) row(fmt::format("  {}", known.name), plan.arena.*known.field);
  }
  row("constant tables", plan.constant_bytes);
  row("left for the KV cache", request.memory_bytes - std::min(request.memory_bytes, plan.fixed_bytes),
      fmt::format("  of {}", size_text(request.memory_bytes)));
  row("host, pinned", plan.pinned_bytes, "  beside the device's memory");
  return text + kv_table(plan) + advice_text(plan, request.memory_bytes, formats);
}

int plan(const PlanFlags& flags) {
  const engine::ModelConfig config = engine::load_model_config(flags.model);
  const auto directory = open_weights(flags.model);
  const engine::MemoryPlanRequest request = plan_request(flags);
  const auto plan_for = [&](const std::vector<quant::KvDtype>& dtypes) {
    return engine::plan_memory(config, directory ? &*directory : nullptr, request, dtypes);
  };
  const engine::MemoryPlan every = plan_for(every_kv_dtype());
  const bool all = flags.engine.kv_dtype == "all";
  const engine::MemoryPlan plan = all ? every : plan_for({quant::parse_kv_dtype(flags.engine.kv_dtype)});
  const std::vector<std::string> formats = formats_that_fit(every);
  Output output("");
  output.write(flags.json ? plan_json(flags, config, request, plan, formats)
                                    .dump(-1, ' ', false, ordered_json::error_handler_t::replace) +
                                "\n"
                          : plan_text(config, request, plan, formats));
  return kOk;
}

}  // namespace

Action add_plan(CLI::App& command) {
  const auto flags = std::make_shared<PlanFlags>();
  flags->engine.kv_dtype = "all";
  command
      .add_option("-m,--model,model", flags->model,
                  "Model directory; config.json is enough, safetensors say more")
      ->required();
  command.add_option("--memory", flags->memory, "Device memory to plan for, such as 24G")->required();
  command
      .add_option("--max-seq-len", flags->max_seq_len,
                  "Longest sequence, prompt and answer (0: what the model takes)")
      ->capture_default_str();
  command.add_option("--max-batch-size", flags->max_batch_size, "Most sequences in a step")
      ->check(CLI::Range(1U, 65'536U))
      ->capture_default_str();
  add_engine_flags(command, flags->engine, "Format of the KV cache, K:V, or all");
  command.add_option("--device", flags->device, "Kind of device to plan for: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_flag("--json", flags->json, "One JSON object");
  return [flags] { return plan(*flags); };
}

}  // namespace metrale::app
