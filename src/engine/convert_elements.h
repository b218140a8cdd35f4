// SPDX-License-Identifier: Apache-2.0
// Element type conversion of tensors on their way to the device: exact, or rounded to nearest even.
#pragma once

#include <cstddef>
#include <span>

#include <metrale/quant/element_type.h>

namespace metrale::engine {

// Both spans hold the same number of elements.
void convert_elements(std::span<const std::byte> in, quant::ElementType from, std::span<std::byte> out,
                      quant::ElementType to);

}  // namespace metrale::engine
