// SPDX-License-Identifier: Apache-2.0
// The calls of the fake driver by group, as cuGetProcAddress_v2 gives them out.
#pragma once

#include <vector>

#include "support/fake_cuda/calls.h"

namespace fake_cuda {

[[nodiscard]] std::vector<Entry> device_calls();
[[nodiscard]] std::vector<Entry> memory_calls();
[[nodiscard]] std::vector<Entry> copy_calls();
[[nodiscard]] std::vector<Entry> stream_calls();
[[nodiscard]] std::vector<Entry> graph_calls();
[[nodiscard]] std::vector<Entry> module_calls();

}  // namespace fake_cuda
