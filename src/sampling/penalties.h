// SPDX-License-Identifier: Apache-2.0
// Edits of a row of logits before anything is chosen. An excluded entry (-inf) stays excluded whatever is
// added; a result that overflows stops at the largest finite float, so only a bias of -inf and a mask ban a
// token.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include <metrale/sampling/params.h>
#include <metrale/sampling/sampler.h>

namespace metrale::sampling {

void apply_logit_bias(std::span<const std::pair<std::uint32_t, float>> bias, std::span<float> row);

// Repetition, frequency, presence, then DRY, then LZ; those that are off cost nothing.
// scratch.counts and scratch.touched have row.size() entries unless all are off.
void apply_penalties(const SamplingParams& params, const TokenHistory& history, std::span<float> row,
                     PenaltyScratch& scratch);

// Whether apply_penalties would do anything.
[[nodiscard]] bool has_penalties(const SamplingParams& params);

}  // namespace metrale::sampling
