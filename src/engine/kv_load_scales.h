// SPDX-License-Identifier: Apache-2.0
// Scales for fp8 and nvfp4 where nobody brought a calibration: measured while the model loads, on a text that
// never changes.
#pragma once

#include <string>

#include <metrale/engine/kv_calibrator.h>
#include <metrale/engine/tokenizer.h>

namespace metrale::engine {

// Blocking. `tokenizer` null: that of the model directory. The same text whatever the engine's limits are: a
// sequence's tokens must not depend on them. Throws InvalidArgument where there is no tokenizer.
[[nodiscard]] KvCalibration measure_kv_ranges(const KvModel& model, const std::string& model_directory,
                                              const Tokenizer* tokenizer);

}  // namespace metrale::engine
