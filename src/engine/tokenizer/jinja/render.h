// SPDX-License-Identifier: Apache-2.0
// Runs a chat template.
#pragma once

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja/ast.h"

namespace metrale::engine::jinja {

// The text that the template writes with these variables; `now` is what strftime_now shows. The tree must
// come from parse(). Throws FailureAt. Steps, sizes and depth are limited: any template ends.
[[nodiscard]] Text render(const Node& tree, std::vector<std::pair<std::string, Value>> variables,
                          std::time_t now);

}  // namespace metrale::engine::jinja
