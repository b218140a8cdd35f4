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

// s = sqrt(standard deviation of the keys / root mean square of the queries), by channel: where a format's
// error is alike in all directions, no other s has a smaller expected error of the score <q, k>. keys,
// queries: [count][head_dim]. A channel counts as 1e-4 of what the largest one has, at least; keys or queries
// that have nothing in any channel count as 1. Throws InvalidArgument for none, or for sizes that are not
// whole vectors.
[[nodiscard]] KvEqualiser make_equaliser(std::uint32_t head_dim, std::span<const float> keys,
                                         std::span<const float> queries);

}  // namespace metrale::quant
