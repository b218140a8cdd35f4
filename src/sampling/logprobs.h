// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of one row of logits; entries that are not finite do not take part.
#pragma once

#include <cstdint>
#include <span>

#include <metrale/sampling/sampler.h>

namespace metrale::sampling {

// Fills `top` with the best tokens, best first, and shortens it where fewer are finite. Returns the record of
// `token`, which is finite in the row. `scratch` has row.size() entries.
[[nodiscard]] TokenLogprob row_logprobs(std::span<const float> row, float temperature, std::uint32_t token,
                                        std::span<std::uint64_t> scratch, std::span<TokenLogprob>& top);

}  // namespace metrale::sampling
