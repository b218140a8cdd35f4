// SPDX-License-Identifier: Apache-2.0
// The flags of every command that asks an engine for texts: sampling, ends, tenant.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <metrale/engine/model_config.h>
#include <metrale/engine/request.h>

namespace metrale::app {

struct RequestFlags {
  std::uint32_t max_tokens = 256;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_ids;
  std::vector<std::string> stop;
  std::string tenant;

  sampling::SamplingParams sampling;  // what follows is apart, since a model may recommend it
  std::optional<float> temperature;
  std::optional<std::int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  bool adaptive_sampling = false;
  std::vector<std::string> logit_bias;
};

void add_request_flags(CLI::App& command, RequestFlags& flags);

// A request that lacks its prompt. What a flag does not say, the model's recommendation does; without either
// the most likely token is taken. Throws InvalidArgument.
[[nodiscard]] engine::Request request_without_prompt(const RequestFlags& flags,
                                                     const engine::GenerationDefaults& defaults);

}  // namespace metrale::app
