// SPDX-License-Identifier: Apache-2.0
#include "engine/convert_elements.h"

#include <cstdint>
#include <cstring>

#include <metrale/base/assert.h>
#include <metrale/quant/float_convert.h>

namespace metrale::engine {
namespace {

using quant::ElementType;

float load(const std::byte* at, ElementType type) {
  if (type == ElementType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return type == ElementType::kBf16 ? quant::bf16_to_float(bits) : quant::f16_to_float(bits);
}

void store(std::byte* at, ElementType type, float value) {
  if (type == ElementType::kF32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const std::uint16_t bits =
      type == ElementType::kBf16 ? quant::float_to_bf16(value) : quant::float_to_f16(value);
  std::memcpy(at, &bits, sizeof bits);
}

}  // namespace

void convert_elements(std::span<const std::byte> in, ElementType from, std::span<std::byte> out,
                      ElementType to) {
  const std::size_t in_width = quant::element_bytes(from);
  const std::size_t out_width = quant::element_bytes(to);
  const std::size_t count = in.size() / in_width;
  METRALE_ASSERT(out.size() == count * out_width);
  for (std::size_t i = 0; i < count; ++i) store(&out[i * out_width], to, load(&in[i * in_width], from));
}

}  // namespace metrale::engine
