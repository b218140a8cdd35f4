// SPDX-License-Identifier: Apache-2.0
// Arithmetic that cannot wrap silently, and the roundings that every layout needs.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>

#include <metrale/base/error.h>

namespace metrale {

// nullopt where the mathematical result does not fit T.
template <std::unsigned_integral T>
[[nodiscard]] constexpr std::optional<T> try_mul(T a, T b) {
  T result{};
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::unsigned_integral T>
[[nodiscard]] constexpr std::optional<T> try_add(T a, T b) {
  T result{};
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// Throws InvalidArgument where the product does not fit 64 bits.
template <std::convertible_to<std::uint64_t>... Rest>
[[nodiscard]] constexpr std::uint64_t checked_mul(std::uint64_t first, Rest... rest) {
  std::uint64_t product = first;
  for (const std::uint64_t factor : {static_cast<std::uint64_t>(rest)...}) {
    if (__builtin_mul_overflow(product, factor, &product)) throw InvalidArgument("size overflows 64 bits");
  }
  return product;
}

// Throws InvalidArgument where the sum does not fit 64 bits.
template <std::convertible_to<std::uint64_t>... Rest>
[[nodiscard]] constexpr std::uint64_t checked_add(std::uint64_t first, Rest... rest) {
  std::uint64_t sum = first;
  for (const std::uint64_t term : {static_cast<std::uint64_t>(rest)...}) {
    if (__builtin_add_overflow(sum, term, &sum)) throw InvalidArgument("size overflows 64 bits");
  }
  return sum;
}

template <std::unsigned_integral T>
[[nodiscard]] constexpr T ceil_div(T value, T divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

// The smallest multiple of `multiple` that is at least `value`; the caller knows it fits.
template <std::unsigned_integral T>
[[nodiscard]] constexpr T round_up(T value, T multiple) {
  return ceil_div(value, multiple) * multiple;
}

// Throws InvalidArgument naming `what` where the value does not fit To.
template <std::integral To, std::integral From>
[[nodiscard]] constexpr To narrow(From value, const char* what) {
  const To result = static_cast<To>(value);
  if (static_cast<From>(result) != value || ((result < To{}) != (value < From{}))) {
    throw InvalidArgument(what);
  }
  return result;
}

}  // namespace metrale
