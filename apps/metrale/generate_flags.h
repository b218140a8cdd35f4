// SPDX-License-Identifier: Apache-2.0
// The flags of `metrale generate` and what they mean to the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include <metrale/engine/engine.h>

#include "commands.h"
#include "engine_flags.h"
#include "metrics_output.h"
#include "prompts.h"
#include "request_flags.h"

namespace metrale::app {

struct GenerateFlags {
  std::string model;
  PromptSources prompts;
  bool chat = false;
  std::string system;
  std::string chat_template;
  std::string output;
  bool json = false;
  bool stats = false;
  RequestFlags request;

  std::optional<std::uint32_t> max_seq_len;
  std::optional<std::uint32_t> max_batch_size;
  std::uint32_t kv_blocks = 0;
  EngineFlags engine;
  bool no_graphs = false;
  MetricsFlags metrics;
  DeviceFlags device;
};

void add_generate_flags(CLI::App& command, GenerateFlags& flags);

// Engine options for prompts of at most `longest_prompt` tokens: limits that were not given are what those
// need.
[[nodiscard]] engine::EngineOptions engine_options(const GenerateFlags& flags,
                                                   const engine::ModelConfig& config, std::size_t num_prompts,
                                                   std::size_t longest_prompt);

}  // namespace metrale::app
