// SPDX-License-Identifier: Apache-2.0
// The values of synthetic tensors: functions of (seed, tensor name, element), so that any part of a tensor
// can be made by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <metrale/quant/element_type.h>

namespace metrale::engine {

class SyntheticValues {
 public:
  explicit SyntheticValues(std::uint64_t seed);

  // A tensor's values are mean + deviation * z, z standard normal to 16 bits of probability.
  struct Distribution {
    std::uint64_t key = 0;
    float mean = 0;
    float deviation = 1;
  };
  [[nodiscard]] Distribution distribution(std::string_view name,
                                          const std::vector<std::uint64_t>& shape) const;

  // Elements [first, first + n) for an `out` of n elements; `first` is a multiple of 4. Thread-safe.
  void fill(const Distribution& distribution, std::uint64_t first, quant::ElementType dtype,
            std::span<std::byte> out) const;

 private:
  std::uint64_t seed_;
  std::vector<float> quantiles_;  // of the middles of 65,536 equally likely ranges
};

}  // namespace metrale::engine
