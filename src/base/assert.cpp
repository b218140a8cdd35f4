// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

#include <metrale/base/assert.h>

namespace metrale {

void assertion_failed(const char* expression, const char* file, unsigned line) {
  std::fprintf(stderr, "%s:%u: broken invariant: %s\n", file, line, expression);
  std::abort();
}

}  // namespace metrale
