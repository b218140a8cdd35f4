// SPDX-License-Identifier: Apache-2.0
// What kv_write refuses before it looks at any data, whatever the backend.
#pragma once

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/kv_write.h>

#include "kernels/host_args.h"

namespace metrale::kernels {

[[nodiscard]] inline bool has_values(const KvWriteArgs& args) {
  return args.v != 0;
}

inline void check_kv_write(const KvWriteArgs& args) {
  check_type("kv_write", args.type);
  check_kv_format("kv_write", args.k_format, args.head_dim);
  if ((args.v == 0) != (args.v_pool == 0)) {
    throw InvalidArgument(fmt::format("kv_write: {} is 0 and {} is not: without values both are",
                                      args.v == 0 ? "v" : "v_pool", args.v == 0 ? "v_pool" : "v"));
  }
  if (has_values(args)) check_kv_format("kv_write", args.v_format, args.head_dim);
  check_block_size("kv_write", args.block_size, has_values(args) ? args.v_format : quant::KvFormat::kBf16);
}

}  // namespace metrale::kernels
