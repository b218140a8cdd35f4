// SPDX-License-Identifier: Apache-2.0
// Scales for fp8 and nvfp4 where nobody brought a calibration: measured while the model loads, on a text that
// never changes.
#pragma once

#include <string>

#include <metrale/engine/kv_calibrator.h>
#include <metrale/engine/tokenizer.h>

namespace metrale::engine {

// Blocking. `tokenizer` null: that of the model directory. Throws InvalidArgument where there is none.
[[nodiscard]] KvCalibration measure_kv_ranges(const KvModel& model, const std::string& model_directory,
                                              const Tokenizer* tokenizer, std::uint32_t max_tokens);

}  // namespace metrale::engine
