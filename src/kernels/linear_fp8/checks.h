// SPDX-License-Identifier: Apache-2.0
// What every body of linear_fp8 checks first.
#pragma once

#include <string_view>

#include <metrale/kernels/linear_fp8.h>

namespace metrale::kernels {

// Throw InvalidArgument and Unsupported as the header says.
void check_quantize_fp8(std::string_view kernel, const QuantizeFp8Args& args);
void check_linear_fp8(std::string_view kernel, const LinearFp8Args& args);

}  // namespace metrale::kernels
