// SPDX-License-Identifier: Apache-2.0
// The rotary embedding's part of config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <metrale/engine/rope.h>

#include "engine/json_fields.h"

namespace metrale::engine {

struct LayerRopes {
  RopeConfig whole;                 // of layers that see everything, and of all where `local` is absent
  std::optional<RopeConfig> local;  // of layers with a window
};

// rope_theta with rope_scaling or rope_parameters, which newer files have, and there perhaps for each type of
// layer. `default_theta` and `max_position` stand in for fields that are absent. Throws FormatError,
// Unsupported.
[[nodiscard]] LayerRopes read_rope(const JsonFields& fields, const std::string& path, double default_theta,
                                   std::uint32_t max_position);

}  // namespace metrale::engine
