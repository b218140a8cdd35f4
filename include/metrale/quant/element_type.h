// SPDX-License-Identifier: Apache-2.0
// ElementType: the plain number types that activations, weights and logits come in.
#pragma once

#include <cstdint>
#include <string_view>

namespace metrale::quant {

// Values are part of the kernel ABI.
enum class ElementType : std::uint32_t { kF32 = 0, kBf16 = 1, kF16 = 2 };

[[nodiscard]] constexpr std::uint32_t element_bytes(ElementType type) {
  return type == ElementType::kF32 ? 4 : 2;
}

[[nodiscard]] constexpr std::string_view to_string(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return "fp32";
    case ElementType::kBf16:
      return "bf16";
    case ElementType::kF16:
      return "fp16";
  }
  return "unknown";
}

}  // namespace metrale::quant
