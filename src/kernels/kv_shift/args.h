// SPDX-License-Identifier: Apache-2.0
// What kv_shift refuses before it looks at any data, whatever the backend.
#pragma once

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/kv_shift.h>

#include "kernels/host_args.h"

namespace metrale::kernels {

inline void check_kv_shift(const KvShiftArgs& args) {
  check_kv_format("kv_shift", args.k_format, args.head_dim);
  check_block_size("kv_shift", args.block_size, quant::KvFormat::kBf16);  // values are no part of it
  if (args.rotary_dim % 2 != 0 || args.rotary_dim > args.head_dim) {
    throw InvalidArgument(fmt::format("kv_shift: rotary_dim {} must be even and at most head_dim {}",
                                      args.rotary_dim, args.head_dim));
  }
}

}  // namespace metrale::kernels
