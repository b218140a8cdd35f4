// SPDX-License-Identifier: Apache-2.0
#include "engine_flags.h"

#include <charconv>

#include <fmt/format.h>

#include <metrale/base/checked.h>
#include <metrale/base/error.h>

namespace metrale::app {
namespace {

bool parse_layers(const std::string& text, std::uint32_t& layers) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

void add_engine_flags(CLI::App& command, EngineFlags& flags, const char* kv_dtype_help) {
  command.add_option("--max-batch-tokens", flags.max_batch_tokens, "Most tokens in a step")
      ->check(CLI::Range(1U, 1U << 20))
      ->capture_default_str();
  command.add_option("--block-size", flags.block_size, "Tokens in a KV block")
      ->check(CLI::IsMember({16, 32, 64, 128}))
      ->capture_default_str();
  command.add_option("--kv-dtype", flags.kv_dtype, kv_dtype_help)->capture_default_str();
  command.add_option("--dtype", flags.dtype, "Computation: auto, bf16 or fp32")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}))
      ->capture_default_str();
}

void add_kv_calibration_flags(CLI::App& command, EngineFlags& flags) {
  command.add_option("--kv-calibration", flags.kv_calibration,
                     "Scales, equaliser and formats of the KV cache, as `metrale calibrate` wrote them");
  const auto check = [](const std::string& text) {
    std::uint32_t layers = 0;
    return text == "auto" || parse_layers(text, layers)
               ? std::string{}
               : fmt::format("{} is neither a number of layers nor auto", text);
  };
  command
      .add_option("--kv-high-precision-layers", flags.kv_high_precision_layers,
                  "Layers whose KV cache is bf16 whatever the others have: so many first and last ones, or "
                  "auto: those that the calibration marks")
      ->check(CLI::Validator(check, "N|auto"))
      ->capture_default_str();
}

void add_load_flags(CLI::App& command, EngineFlags& flags) {
  auto* path = command
                   .add_option("--load-path", flags.load_path,
                               "How weights are read: auto, direct (past the page cache), buffered or mmap")
                   ->check(CLI::IsMember({"auto", "direct", "buffered", "mmap"}))
                   ->capture_default_str();
  command.add_flag("--no-fast-load", flags.no_fast_load, "The same as --load-path mmap")->excludes(path);
}

void add_prefix_caching_flag(CLI::App& command, EngineFlags& flags, bool by_default) {
  flags.prefix_caching = by_default;
  command.add_flag("--enable-prefix-caching,!--no-prefix-caching", flags.prefix_caching,
                   by_default ? "Compute the beginning that prompts share once (the default)"
                              : "Compute the beginning that prompts share once");
}

void add_compute_flags(CLI::App& command, EngineFlags& flags) {
  command.add_flag(
      "--fast", flags.fast,
      "Compute prompts in the fastest order: logits may then depend on batch and chunks in their last bits");
  command
      .add_option("--attention", flags.attention,
                  "Attention of decode steps: native, or flashinfer (CUDA builds with METRALE_PEERS)")
      ->check(CLI::IsMember({"native", "flashinfer"}))
      ->capture_default_str();
}

void add_size_flags(CLI::App& command, const char* max_seq_len_help, const SizeFlags& flags) {
  command.add_option("--max-seq-len", flags.max_seq_len, max_seq_len_help)->check(CLI::Range(2U, 1U << 30));
  command.add_option("--max-batch-size", flags.max_batch_size, "Most sequences in a step")
      ->check(CLI::Range(1U, 65'536U))
      ->capture_default_str();
  command
      .add_option("--kv-blocks", flags.kv_blocks,
                  "KV blocks to allocate (0: enough for every sequence at full length)")
      ->capture_default_str();
  command.add_flag("--no-graphs", flags.no_graphs, "Launch decode kernels one by one");
}

void add_seed_flag(CLI::App& command, std::uint64_t& seed, const char* help) {
  const auto check = [](const std::string& text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool ok = error == std::errc{} && end == text.data() + text.size();
    return ok ? std::string{} : fmt::format("{} is no whole number from 0 to 2^64 - 1", text);
  };
  command.add_option("--seed", seed, help)->check(CLI::Validator(check, "UINT64"))->capture_default_str();
}

std::optional<quant::ElementType> compute_type(const EngineFlags& flags) {
  if (flags.dtype == "bf16") return quant::ElementType::kBf16;
  if (flags.dtype == "fp32") return quant::ElementType::kF32;
  return std::nullopt;
}

weights::LoadOptions load_options(const EngineFlags& flags) {
  weights::LoadOptions options;
  options.path = flags.no_fast_load
                     ? weights::LoadPath::kMap
                     : weights::parse_load_path(flags.load_path).value_or(weights::LoadPath::kAuto);
  return options;
}

void apply_engine_flags(const EngineFlags& flags, engine::EngineOptions& options) {
  options.max_batch_tokens = flags.max_batch_tokens;
  options.block_size = flags.block_size;
  options.kv_dtype_calibrated = flags.kv_dtype == "calibrated";
  if (!options.kv_dtype_calibrated) options.kv_dtype = quant::parse_kv_dtype(flags.kv_dtype);
  options.kv_high_precision.calibrated = flags.kv_high_precision_layers == "auto";
  if (!options.kv_high_precision.calibrated) {
    expects(parse_layers(flags.kv_high_precision_layers, options.kv_high_precision.boundary_layers),
            "--kv-high-precision-layers: a number of layers, or auto");
  }
  if (!flags.kv_calibration.empty()) {
    options.kv_calibration = engine::read_kv_calibration(flags.kv_calibration);
  } else if (options.kv_dtype_calibrated || options.kv_high_precision.calibrated) {
    throw InvalidArgument(
        "--kv-dtype calibrated and --kv-high-precision-layers auto need --kv-calibration FILE, which "
        "`metrale calibrate` writes");
  }
  options.compute = compute_type(flags);
  options.load = load_options(flags);
  options.fast = flags.fast;
  options.prefix_caching = flags.prefix_caching;
  options.attention = flags.attention == "flashinfer" ? engine::AttentionKernel::kFlashInfer
                                                      : engine::AttentionKernel::kNative;
}

}  // namespace metrale::app
