// SPDX-License-Identifier: Apache-2.0
// What pages of HTML that the program writes have in common.
#pragma once

#include <string>
#include <string_view>

namespace metrale::app {

// For text and attribute values: & < > " ' become entities, and control characters spaces.
[[nodiscard]] std::string html_escaped(std::string_view text);

}  // namespace metrale::app
