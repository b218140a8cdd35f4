// SPDX-License-Identifier: Apache-2.0
// CallSite: the caller's file and line, taken by a default argument (std::source_location is missing on clang
// 14).
#pragma once

namespace metrale {

struct CallSite {
  const char* file = "";
  unsigned line = 0;
  [[nodiscard]] static constexpr CallSite here(const char* file = __builtin_FILE(),
                                               unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace metrale
