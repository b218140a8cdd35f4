// SPDX-License-Identifier: Apache-2.0
// ElementConverter: pieces of a tensor from one file type to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <metrale/quant/element_type.h>
#include <metrale/weights/dtype.h>

namespace metrale::app {

[[nodiscard]] weights::DType file_dtype(quant::ElementType type);
// Whether tensors of this type have floating elements of 16 to 64 bits.
[[nodiscard]] bool is_convertible(weights::DType dtype);

class ElementConverter {
 public:
  // `from` is convertible.
  ElementConverter(weights::DType from, quant::ElementType to) : from_(from), to_(to) {}

  // `in` holds whole elements. Every element is rounded once, to nearest even. The result lives until the
  // next call.
  [[nodiscard]] std::span<const std::byte> convert(std::span<const std::byte> in);
  // Finite elements that became infinite, over all calls.
  [[nodiscard]] std::uint64_t overflows() const { return overflows_; }

 private:
  [[nodiscard]] std::span<const std::byte> narrow_doubles(std::span<const std::byte> in);

  weights::DType from_;
  quant::ElementType to_;
  std::uint64_t overflows_ = 0;
  std::vector<float> floats_;  // of doubles
  std::vector<std::byte> out_;
};

}  // namespace metrale::app
