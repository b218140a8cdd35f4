// SPDX-License-Identifier: Apache-2.0
// The flags of `metrale replay` and what they mean to the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include <metrale/engine/engine.h>

#include "commands.h"
#include "engine_flags.h"
#include "metrics_output.h"
#include "replay/trace.h"

namespace metrale::app {

struct ReplayFlags {
  std::string model;
  std::string trace;
  std::string output;
  std::string html;
  std::string speed = "1";
  bool json = false;
  bool verify = false;

  std::optional<std::uint32_t> max_seq_len;
  std::uint32_t max_batch_size = 16;
  std::uint32_t kv_blocks = 0;
  EngineFlags engine;
  bool no_graphs = false;
  DeviceFlags device;
  MetricsFlags metrics;
};

void add_replay_flags(CLI::App& command, ReplayFlags& flags);

// 0 for "max". Throws InvalidArgument.
[[nodiscard]] double parse_speed(const std::string& text);

// Engine options that every request of the trace fits. Throws InvalidArgument naming the first that does not
// fit the model or a limit that was given.
[[nodiscard]] engine::EngineOptions engine_options(const ReplayFlags& flags,
                                                   const engine::ModelConfig& config,
                                                   const replay::Trace& trace);

}  // namespace metrale::app
