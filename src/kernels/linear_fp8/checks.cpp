// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear_fp8/checks.h"

#include <fmt/format.h>

#include <metrale/base/error.h>

#include "kernels/host_args.h"

namespace metrale::kernels {

void check_quantize_fp8(std::string_view kernel, const QuantizeFp8Args& args) {
  check_type(kernel, args.in_type);
  if (args.width == 0 || args.in_stride < args.width) {
    throw InvalidArgument(
        fmt::format("{}: width {} (stride {}): width must be at least 1 and the stride at least the width",
                    kernel, args.width, args.in_stride));
  }
}

void check_linear_fp8(std::string_view kernel, const LinearFp8Args& args) {
  check_type(kernel, args.out_type);
  if (args.in_features == 0 || args.out_stride < args.out_features) {
    throw InvalidArgument(fmt::format(
        "{}: in_features {}, out_features {} (stride {}): in_features must be at least 1 and the stride at "
        "least out_features",
        kernel, args.in_features, args.out_features, args.out_stride));
  }
  if (args.in_features % kLinearFp8Multiple != 0 || args.out_features % kLinearFp8Multiple != 0) {
    throw Unsupported(kernel, fmt::format("in_features {} and out_features {}: both must be multiples of {}",
                                          args.in_features, args.out_features, kLinearFp8Multiple));
  }
}

}  // namespace metrale::kernels
