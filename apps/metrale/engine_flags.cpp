// SPDX-License-Identifier: Apache-2.0
#include "engine_flags.h"

#include <charconv>

#include <fmt/format.h>

namespace metrale::app {

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

void apply_engine_flags(const EngineFlags& flags, engine::EngineOptions& options) {
  options.max_batch_tokens = flags.max_batch_tokens;
  options.block_size = flags.block_size;
  options.kv_dtype = quant::parse_kv_dtype(flags.kv_dtype);
  options.compute = compute_type(flags);
  options.fast = flags.fast;
  options.prefix_caching = flags.prefix_caching;
  options.attention = flags.attention == "flashinfer" ? engine::AttentionKernel::kFlashInfer
                                                      : engine::AttentionKernel::kNative;
}

}  // namespace metrale::app
