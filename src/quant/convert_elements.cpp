// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include <metrale/base/assert.h>
#include <metrale/quant/convert_elements.h>
#include <metrale/quant/float_convert.h>

namespace metrale::quant {
namespace {

template <ElementType kType>
float load(const std::byte* at) {
  if constexpr (kType == ElementType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  } else {
    std::uint16_t bits = 0;
    std::memcpy(&bits, at, sizeof bits);
    return kType == ElementType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
}

// Whether `value` became infinite on the way.
template <ElementType kType>
bool store(std::byte* at, float value) {
  if constexpr (kType == ElementType::kF32) {
    std::memcpy(at, &value, sizeof value);
    return false;
  } else {
    constexpr std::uint16_t kInfinity = kType == ElementType::kBf16 ? 0x7F80 : 0x7C00;
    const std::uint16_t bits = kType == ElementType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
    std::memcpy(at, &bits, sizeof bits);
    return (bits & 0x7FFFU) == kInfinity && std::isfinite(value);
  }
}

template <ElementType kFrom, ElementType kTo>
std::uint64_t convert(const std::byte* in, std::byte* out, std::size_t count) {
  std::uint64_t overflows = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load<kFrom>(in + i * element_bytes(kFrom));
    overflows += store<kTo>(out + i * element_bytes(kTo), value) ? 1 : 0;
  }
  return overflows;
}

template <ElementType kFrom>
std::uint64_t convert_from(const std::byte* in, std::byte* out, ElementType to, std::size_t count) {
  switch (to) {
    case ElementType::kF32:
      return convert<kFrom, ElementType::kF32>(in, out, count);
    case ElementType::kBf16:
      return convert<kFrom, ElementType::kBf16>(in, out, count);
    case ElementType::kF16:
      return convert<kFrom, ElementType::kF16>(in, out, count);
  }
  return 0;
}

}  // namespace

std::uint64_t convert_elements(std::span<const std::byte> in, ElementType from, std::span<std::byte> out,
                               ElementType to) {
  const std::size_t count = in.size() / element_bytes(from);
  METRALE_ASSERT(out.size() == count * element_bytes(to));
  switch (from) {
    case ElementType::kF32:
      return convert_from<ElementType::kF32>(in.data(), out.data(), to, count);
    case ElementType::kBf16:
      return convert_from<ElementType::kBf16>(in.data(), out.data(), to, count);
    case ElementType::kF16:
      return convert_from<ElementType::kF16>(in.data(), out.data(), to, count);
  }
  return 0;
}

}  // namespace metrale::quant
