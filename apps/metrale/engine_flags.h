// SPDX-License-Identifier: Apache-2.0
// The flags of every command that sizes an engine: step, block, formats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include <metrale/engine/engine.h>

namespace metrale::app {

struct EngineFlags {
  std::uint32_t max_batch_tokens = 512;
  std::uint32_t block_size = 16;
  std::string kv_dtype = "bf16";
  std::string kv_calibration;
  std::string kv_high_precision_layers = "0";
  std::string dtype = "auto";
  bool fast = false;
  std::string attention = "native";
  bool prefix_caching = false;
  std::string load_path = "auto";
  bool no_fast_load = false;
};
void add_engine_flags(CLI::App& command, EngineFlags& flags,
                      const char* kv_dtype_help =
                          "Format of the KV cache: bf16, fp32, fp16, fp8, nvfp4, nvfp4_searched, turbo8i, "
                          "turbo8, turbo4, turbo3 or turbo2, K:V, or calibrated (CUDA: bf16, fp32)");
// --kv-calibration, --kv-high-precision-layers: of the commands that run a model.
void add_kv_calibration_flags(CLI::App& command, EngineFlags& flags);
// --load-path, --no-fast-load: of the commands that load weights.
void add_load_flags(CLI::App& command, EngineFlags& flags);
// --enable-prefix-caching and its opposite, --no-prefix-caching; `by_default` as the help says.
void add_prefix_caching_flag(CLI::App& command, EngineFlags& flags, bool by_default);
// Of the commands that compute.
void add_compute_flags(CLI::App& command, EngineFlags& flags);

// Of the commands that run many requests.
struct SizeFlags {
  std::optional<std::uint32_t>& max_seq_len;
  std::uint32_t& max_batch_size;
  std::uint32_t& kv_blocks;
  bool& no_graphs;
};
void add_size_flags(CLI::App& command, const char* max_seq_len_help, const SizeFlags& flags);

// A whole number below 2^64: CLI11 alone would take larger ones for the largest.
void add_seed_flag(CLI::App& command, std::uint64_t& seed, const char* help);

// none for "auto".
[[nodiscard]] std::optional<quant::ElementType> compute_type(const EngineFlags& flags);
[[nodiscard]] weights::LoadOptions load_options(const EngineFlags& flags);
// Sets the options that the flags name. Throws InvalidArgument, and what reading the calibration throws.
void apply_engine_flags(const EngineFlags& flags, engine::EngineOptions& options);

}  // namespace metrale::app
