// SPDX-License-Identifier: Apache-2.0
// The errors of formats on a model's own queries, keys and values.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <metrale/engine/kv_calibrator.h>

#include "report.h"

namespace metrale::quant_report {

// Blocking: runs the tokens together, keeps what attention works on, and measures it layer by layer.
// `queries`: positions of each query head, at even distances, the last token's among them; as many as there
// are tokens at most. The names in the result are empty. `progress` is called with the layers done. Throws
// what TextRunner throws, Cancelled.
[[nodiscard]] ModelErrors measure_model(const engine::KvModel& model, std::span<const std::int32_t> tokens,
                                        std::uint32_t queries, const Measurer& measurer,
                                        const std::function<void(std::size_t done)>& progress);

}  // namespace metrale::quant_report
