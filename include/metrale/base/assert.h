// SPDX-License-Identifier: Apache-2.0
// METRALE_ASSERT: an invariant of our own code. On with METRALE_CHECKS (dev and sanitizer presets); prints
// and aborts.
#pragma once

namespace metrale {
[[noreturn]] void assertion_failed(const char* expression, const char* file, unsigned line);
}  // namespace metrale

#ifdef METRALE_CHECKS
#define METRALE_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::metrale::assertion_failed(#expression, __FILE__, __LINE__))
#else
#define METRALE_ASSERT(expression) static_cast<void>(sizeof(!(expression)))
#endif
