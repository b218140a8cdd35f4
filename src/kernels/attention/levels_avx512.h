// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 kernels of levels share. Local to the including source.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <type_traits>

#include "kernels/attention/levels.h"
#include "kernels/attention/levels_tables.h"

namespace metrale::kernels::levels {
namespace {

constexpr std::uint8_t kUnsigned = 0x80;  // what makes a signed byte an unsigned one, 128 larger

// Ternary logic.
constexpr int kSelect = 0xE4;  // c ? a : b
constexpr int kOrAnd = 0xF8;   // a | (b & c)
constexpr int kXorAnd = 0x78;  // a ^ (b & c)

template <class T>
T load_as(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

__m512i every_byte(int value) {
  return _mm512_set1_epi8(static_cast<char>(value));
}

// A constant that stays in a register, or in memory: compilers would rather make it anew from a general
// register, which costs a shuffle each time.
[[gnu::always_inline]] inline __m512i keep(__m512i value) {
  asm("" : "+v"(value));
  return value;
}

__m512i load_table(const Table& table) {
  return _mm512_loadu_si512(table.data());
}

// A constant vector: element(i) for byte i.
template <class Element>
constexpr auto make_bytes(Element&& element) {
  std::array<std::uint8_t, 64> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(element(i) % 64);
  return bytes;
}

// Calls body(std::integral_constant<KvFormat, ...>) for a format whose levels are integers.
template <class Body>
void with_integer_format(KvFormat format, const Body& body) {
  switch (format) {
    case KvFormat::kTurbo4:
      return body(std::integral_constant<KvFormat, KvFormat::kTurbo4>());
    case KvFormat::kTurbo3:
      return body(std::integral_constant<KvFormat, KvFormat::kTurbo3>());
    case KvFormat::kTurbo2:
      return body(std::integral_constant<KvFormat, KvFormat::kTurbo2>());
    default:
      return body(std::integral_constant<KvFormat, KvFormat::kTurbo8i>());
  }
}

}  // namespace
}  // namespace metrale::kernels::levels
