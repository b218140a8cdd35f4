// SPDX-License-Identifier: Apache-2.0
// Writing JSON by hand, where the bytes matter.
#pragma once

#include <string>
#include <string_view>

namespace metrale::weights {

// In quotes, escaped as the reference implementation of safetensors does: what must be, and nothing else.
void append_json_string(std::string& out, std::string_view text);

// As Python's json module does: ASCII only, what is beyond as \uXXXX, in pairs where needed. `text` is UTF-8.
void append_ascii_json_string(std::string& out, std::string_view text);

}  // namespace metrale::weights
