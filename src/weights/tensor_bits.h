// SPDX-License-Identifier: Apache-2.0
// The one place that says how much room a tensor takes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <metrale/base/checked.h>
#include <metrale/weights/dtype.h>

namespace metrale::weights {

// nullopt where the product, taken from the left, leaves 64 bits on the way: a zero further right does not
// mend it, as in the reference implementation.
[[nodiscard]] inline std::optional<std::uint64_t> tensor_bits(std::span<const std::uint64_t> shape,
                                                              DType dtype) {
  std::optional<std::uint64_t> total = 1;
  for (const std::uint64_t dim : shape) total = total ? try_mul(*total, dim) : total;
  return total ? try_mul(*total, std::uint64_t{bits(dtype)}) : total;
}

}  // namespace metrale::weights
