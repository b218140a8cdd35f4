// SPDX-License-Identifier: Apache-2.0
// The one order in which encoders add: neighbours in pairs, then the pairs' sums in pairs, and so on, as if
// zeros filled the count up to a power of two.
#pragma once

#include <cstddef>

namespace metrale::quant {

// Overwrites x. `count` is at least 1.
[[nodiscard]] constexpr float pairwise_sum(float* x, std::size_t count) {
  for (; count > 1; count = (count + 1) / 2) {
    for (std::size_t i = 0; i < count / 2; ++i) x[i] = x[2 * i] + x[2 * i + 1];
    if (count % 2 != 0) x[count / 2] = x[count - 1] + 0.0F;
  }
  return x[0];
}

}  // namespace metrale::quant
