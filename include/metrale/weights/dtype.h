// SPDX-License-Identifier: Apache-2.0
// DType: the element types of safetensors files. docs/formats/safetensors.md has the table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace metrale::weights {

// In the order of the format: a writer puts later types first, which keeps the data aligned.
enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

namespace detail {
struct DTypeTraits {
  std::string_view name;
  unsigned bits;
};
// Indexed by DType.
inline constexpr std::array<DTypeTraits, 22> kDTypes{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
}  // namespace detail

// The spelling in the file.
[[nodiscard]] constexpr std::string_view to_string(DType dtype) {
  return detail::kDTypes[static_cast<std::size_t>(dtype)].name;
}

// Bits of one element; F4 and the F6 types do not fill bytes.
[[nodiscard]] constexpr unsigned bits(DType dtype) {
  return detail::kDTypes[static_cast<std::size_t>(dtype)].bits;
}

// Exact spelling, upper case. nullopt for a type that the format does not have.
[[nodiscard]] constexpr std::optional<DType> parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < detail::kDTypes.size(); ++i) {
    if (detail::kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace metrale::weights
