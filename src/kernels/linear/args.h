// SPDX-License-Identifier: Apache-2.0
// What linear refuses before it looks at any data, whatever the backend.
#pragma once

#include <string_view>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/kernels/linear.h>

#include "kernels/host_args.h"

namespace metrale::kernels {

inline void check_linear(std::string_view kernel, const LinearArgs& args) {
  for (const quant::ElementType type : {args.in_type, args.weight_type, args.out_type}) {
    check_type(kernel, type);
  }
  if (args.in_features == 0 || args.in_stride < args.in_features || args.out_stride < args.out_features) {
    throw InvalidArgument(fmt::format(
        "{}: in_features {} (stride {}), out_features {} (stride {}): in_features must be at least 1 and a "
        "stride at least its features",
        kernel, args.in_features, args.in_stride, args.out_features, args.out_stride));
  }
  if (args.room_rows != 0 && args.room_rows < args.max_rows) {
    throw InvalidArgument(
        fmt::format("{}: room for {} rows, max_rows {}", kernel, args.room_rows, args.max_rows));
  }
}

}  // namespace metrale::kernels
