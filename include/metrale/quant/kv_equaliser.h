// SPDX-License-Identifier: Apache-2.0
// KvEqualiser: what makes the channels of a head's keys alike before they are rotated. Keys become (k - mean)
// / s and queries q * s, which changes no softmax; it goes into the diagonal of the rotation and costs no
// bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace metrale::quant {

struct KvEqualiser {
  std::vector<float> mean;  // [head_dim]
  std::vector<float> s;     // [head_dim], above 0

  // The diagonal that keys are multiplied with, and that of queries: signs / s and signs * s.
  [[nodiscard]] std::vector<float> key_diagonal(std::span<const float> signs) const;
  [[nodiscard]] std::vector<float> query_diagonal(std::span<const float> signs) const;
};

// s = sqrt(stored / met) of each channel of a head: where a format's error is alike in all directions, no
// other s makes the sum of met^2 error^2 smaller. `stored` is the size of what is stored (the standard
// deviation of keys), `met` that of what it is multiplied with (the root mean square of queries). A channel
// counts as 1e-4 of what the largest one has, at least; a head that has nothing in any channel counts as 1.
[[nodiscard]] std::vector<float> equaliser_divisors(std::span<const double> stored,
                                                    std::span<const double> met);

// Of keys and queries: [count][head_dim]. Throws InvalidArgument for none, or for sizes that are not whole
// vectors.
[[nodiscard]] KvEqualiser make_equaliser(std::uint32_t head_dim, std::span<const float> keys,
                                         std::span<const float> queries);

}  // namespace metrale::quant
