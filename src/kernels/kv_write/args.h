// SPDX-License-Identifier: Apache-2.0
// What kv_write refuses before it looks at any data, whatever the backend.
#pragma once

#include <metrale/base/error.h>
#include <metrale/kernels/kv_write.h>

#include "kernels/host_args.h"

namespace metrale::kernels {

inline void check_kv_write(const KvWriteArgs& args) {
  check_type("kv_write", args.type);
  check_kv_format("kv_write", args.k_format, args.head_dim);
  check_kv_format("kv_write", args.v_format, args.head_dim);
  check_block_size("kv_write", args.block_size, args.v_format);
}

}  // namespace metrale::kernels
