// SPDX-License-Identifier: Apache-2.0
#include "element_converter.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <metrale/base/error.h>
#include <metrale/quant/convert_elements.h>

namespace metrale::app {
namespace {

using quant::ElementType;
using weights::DType;

ElementType element_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:  // by way of floats
    case DType::kF32:
      return ElementType::kF32;
    case DType::kBf16:
      return ElementType::kBf16;
    case DType::kF16:
      return ElementType::kF16;
    default:
      throw InvalidArgument("tensors of this type are not converted");
  }
}

// Rounded to odd: rounding that to 16 bits gives what rounding the double at once would.
float to_odd_float(double value) {
  auto result = static_cast<float>(value);
  if (!std::isfinite(value) || static_cast<double>(result) == value) return result;
  if (std::abs(static_cast<double>(result)) > std::abs(value)) result = std::nextafter(result, 0.0F);
  const std::uint32_t odd = std::bit_cast<std::uint32_t>(result) | 1U;
  // Towards zero a small negative value becomes -0, whose sign stays.
  return std::copysign(std::bit_cast<float>(odd), static_cast<float>(value));
}

}  // namespace

DType file_dtype(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return DType::kF32;
    case ElementType::kBf16:
      return DType::kBf16;
    case ElementType::kF16:
      return DType::kF16;
  }
  throw InvalidArgument("no such element type");
}

bool is_convertible(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

std::span<const std::byte> ElementConverter::narrow_doubles(std::span<const std::byte> in) {
  floats_.resize(in.size() / sizeof(double));
  for (std::size_t i = 0; i < floats_.size(); ++i) {
    double value = 0;
    std::memcpy(&value, &in[i * sizeof value], sizeof value);
    if (to_ != ElementType::kF32) {
      floats_[i] = to_odd_float(value);
      continue;
    }
    floats_[i] = static_cast<float>(value);
    overflows_ += std::isinf(floats_[i]) && std::isfinite(value) ? 1 : 0;
  }
  return std::as_bytes(std::span<const float>(floats_));
}

std::span<const std::byte> ElementConverter::convert(std::span<const std::byte> in) {
  if (from_ == DType::kF64) in = narrow_doubles(in);
  const ElementType from = element_type(from_);
  if (from == to_) return in;
  out_.resize(in.size() / quant::element_bytes(from) * quant::element_bytes(to_));
  overflows_ += quant::convert_elements(in, from, out_, to_);
  return out_;
}

}  // namespace metrale::app
