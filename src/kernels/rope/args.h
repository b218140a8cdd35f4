// SPDX-License-Identifier: Apache-2.0
// What the rope kernels refuse before they look at any data, whatever the backend.
#pragma once

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/rope.h>

#include "kernels/host_args.h"

namespace metrale::kernels {

inline void check_rope_table(const RopeTableArgs& args) {
  if (args.dynamic_from != 0 && args.half_dims < 2) {
    throw InvalidArgument("rope_table: dynamic scaling needs at least two pairs");
  }
}

inline void check_rope(const RopeArgs& args) {
  check_type("rope", args.type);
  if (args.rotary_dim % 2 != 0 || args.rotary_dim > args.head_dim) {
    throw InvalidArgument(fmt::format("rope: rotary_dim {} must be even and at most head_dim {}",
                                      args.rotary_dim, args.head_dim));
  }
}

}  // namespace metrale::kernels
