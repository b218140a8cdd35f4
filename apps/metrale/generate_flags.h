// SPDX-License-Identifier: Apache-2.0
// The flags of `metrale generate` and what they mean to the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <metrale/engine/engine.h>

#include "commands.h"
#include "engine_flags.h"
#include "prompts.h"

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
  std::uint32_t max_tokens = 256;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_ids;

  sampling::SamplingParams sampling;  // what follows is apart, since a model may recommend it
  std::optional<float> temperature;
  std::optional<std::int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  bool adaptive_sampling = false;
  std::vector<std::string> logit_bias;

  std::optional<std::uint32_t> max_seq_len;
  std::optional<std::uint32_t> max_batch_size;
  std::uint32_t kv_blocks = 0;
  EngineFlags engine;
  bool no_graphs = false;
  DeviceFlags device;
};

void add_generate_flags(CLI::App& command, GenerateFlags& flags);

// Sampling parameters with the list-like flags parsed. Throws InvalidArgument.
// What a flag does not say, the model's recommendation does; without either the most likely token is taken.
[[nodiscard]] sampling::SamplingParams sampling_params(const GenerateFlags& flags,
                                                       const engine::GenerationDefaults& defaults);

// Engine options for prompts of at most `longest_prompt` tokens: limits that were not given are what those
// need.
[[nodiscard]] engine::EngineOptions engine_options(const GenerateFlags& flags,
                                                   const engine::ModelConfig& config, std::size_t num_prompts,
                                                   std::size_t longest_prompt);

}  // namespace metrale::app
