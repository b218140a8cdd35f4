// SPDX-License-Identifier: Apache-2.0
// Python's methods of strings, as far as chat templates use them.
#pragma once

#include <array>
#include <string_view>

#include "engine/tokenizer/jinja/builtins.h"

namespace metrale::engine::jinja {

inline constexpr std::array<std::string_view, 14> kTextMethods = {
    "strip",      "lstrip", "rstrip", "split", "splitlines", "startswith", "endswith",
    "capitalize", "upper",  "lower",  "title", "replace",    "find",       "count"};

// One of kTextMethods; another name throws Failure. Changes of case are for ASCII: other text throws Failure.
[[nodiscard]] Value text_method(std::string_view name, const Text& text, const Arguments& arguments,
                                Budget& budget);

// The filter indent.
[[nodiscard]] Value indented(const Text& text, const Arguments& arguments, Budget& budget);

}  // namespace metrale::engine::jinja
