// SPDX-License-Identifier: Apache-2.0
// Lists of many tensor names, short enough to read.
#pragma once

#include <span>
#include <string>

namespace metrale::engine {

// The entries joined by "; ", in order, with those that differ in one layer number only told once:
// "model.layers.*.mlp.up_proj.weight is missing (32 layers)". Every entry is told.
[[nodiscard]] std::string list_by_pattern(std::span<const std::string> entries);

}  // namespace metrale::engine
