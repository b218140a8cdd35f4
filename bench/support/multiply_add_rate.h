// SPDX-License-Identifier: Apache-2.0
// How fast a pool's threads multiply and add in registers: the limit that prefill is compared with.
#pragma once

#include <metrale/base/thread_pool.h>

namespace metrale::bench {

// FP32 operations a second of all threads together; median of `runs`. A multiply-add counts as two.
[[nodiscard]] double multiply_add_rate(ThreadPool& pool, unsigned runs);

}  // namespace metrale::bench
