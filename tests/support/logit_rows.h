// SPDX-License-Identifier: Apache-2.0
// What golden files keep of a row of logits, and how a row is compared with it. The Python twin is
// scripts/golden/logit_rows.py.
#pragma once

#include <cstdint>
#include <span>

namespace metrale::test {

// splitmix64's output for the state `value`.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t value) {
  std::uint64_t z = value + 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// log(sum(exp)) in double. `row` is not empty.
[[nodiscard]] double log_sum_exp(std::span<const float> row);

// sum(sign * logit) / sqrt(row.size()) in double; the sign is minus where the top bit of
// mix64(projection * 2^32 + token) is set. Sees every logit: independent errors of size e move it by about e.
[[nodiscard]] double project(std::span<const float> row, std::uint32_t projection);

// A reference row as it is stored: the largest logits, their ids, and log(sum(exp)) of all and of the others.
struct StoredRow {
  std::span<const std::uint16_t> top_ids;
  std::span<const float> top_logits;
  float log_sum_exp = 0;
  float rest_log_sum_exp = 0;
};

// KL(reference || row) in nats over the reference's top ids and one bucket for all other ids. Throws
// InvalidArgument where an id lies outside of the row.
[[nodiscard]] double bucket_kl(const StoredRow& reference, std::span<const float> row);

// max |row[top_ids[i]] - top_logits[i]|. Throws as bucket_kl.
[[nodiscard]] double max_top_difference(const StoredRow& reference, std::span<const float> row);

// The id of the largest logit, the lowest among equals. `row` is not empty.
[[nodiscard]] std::uint32_t top_id(std::span<const float> row);

}  // namespace metrale::test
