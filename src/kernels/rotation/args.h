// SPDX-License-Identifier: Apache-2.0
// What rotate_heads refuses before it looks at any data, whatever the backend.
#pragma once

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/rotation.h>

#include "kernels/host_args.h"

namespace metrale::kernels {

inline void check_rotate_heads(const RotateHeadsArgs& a) {
  check_type("rotate_heads", a.type);
  if (a.head_dim == 0 || a.head_dim % 16 != 0 || a.head_dim > quant::kKvMaxHeadDim) {
    throw Unsupported("rotate_heads", fmt::format("head_dim {}: multiples of 16 up to {} are", a.head_dim,
                                                  quant::kKvMaxHeadDim));
  }
  if (a.num_kv_heads == 0 || a.num_heads % a.num_kv_heads != 0) {
    throw InvalidArgument(
        fmt::format("rotate_heads: {} heads are not a multiple of {} KV heads", a.num_heads, a.num_kv_heads));
  }
}

}  // namespace metrale::kernels
