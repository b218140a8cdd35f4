// SPDX-License-Identifier: Apache-2.0
// What every body of paged_attention refuses before it looks at the step.
#pragma once

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/attention.h>

#include "kernels/host_args.h"

namespace metrale::kernels {

// Throws Unsupported for a type, format or head_dim without kernels, InvalidArgument for heads that form no
// groups and for blocks of no tokens.
inline void check_attention(const AttentionArgs& a) {
  check_type("paged_attention", a.type);
  check_kv_format("paged_attention", a.k_format, a.head_dim);
  check_kv_format("paged_attention", a.v_format, a.head_dim);
  if (a.num_kv_heads == 0 || a.num_q_heads == 0 || a.num_q_heads % a.num_kv_heads != 0) {
    throw InvalidArgument(fmt::format("paged_attention: {} query heads are not a multiple of {} KV heads",
                                      a.num_q_heads, a.num_kv_heads));
  }
  check_block_size("paged_attention", a.block_size, a.v_format);
}

}  // namespace metrale::kernels
