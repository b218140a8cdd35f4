// SPDX-License-Identifier: Apache-2.0
// Patterns in tokenizer files are written for Oniguruma (Ruby syntax). This turns one into a PCRE2 pattern of
// the same meaning.
#pragma once

#include <string>
#include <string_view>

namespace metrale::engine {

// The PCRE2 pattern, to be compiled with UTF, UCP and MULTILINE and a newline of LF. Classes that the two
// read differently (\s, \w, \h, \v, scripts) are spelled out. Throws Unsupported, naming the construct, for
// what has another meaning or none in PCRE2: class set operations, nested and POSIX classes, {n,m}+, {,n},
// options other than i, inline options not at the start, back references, \b and the like. `where` names the
// pattern's place in the message.
[[nodiscard]] std::string pcre2_from_oniguruma(std::string_view pattern, std::string_view where);

}  // namespace metrale::engine
