// SPDX-License-Identifier: Apache-2.0
// Element type conversion of whole tensors: exact, or rounded to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <metrale/quant/element_type.h>

namespace metrale::quant {

// Both spans hold the same number of elements, at any alignment. Returns how many finite elements were too
// large for the type and became infinite.
std::uint64_t convert_elements(std::span<const std::byte> in, ElementType from, std::span<std::byte> out,
                               ElementType to);

}  // namespace metrale::quant
