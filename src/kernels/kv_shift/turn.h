// SPDX-License-Identifier: Apache-2.0
// The cosines and sines of one change of position, as rope_table has them for a position.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <metrale/quant/kv_format.h>

namespace metrale::kernels {

struct Turn {
  static constexpr std::size_t kMost = quant::kKvMaxHeadDim / 2;

  std::int32_t delta = 0;
  alignas(64) float cosines[kMost] = {};
  alignas(64) float sines[kMost] = {};

  // Rows of a shift mostly have one delta in common.
  void set(std::int32_t to, const float* inv_freq, std::size_t half) {
    if (to == delta) return;
    delta = to;
    for (std::size_t i = 0; i < half; ++i) {
      // Rounded to float first: part of the contract.
      const double angle = static_cast<float>(to) * inv_freq[i];
      cosines[i] = static_cast<float>(std::cos(angle));
      sines[i] = static_cast<float>(std::sin(angle));
    }
  }
};

}  // namespace metrale::kernels
