// SPDX-License-Identifier: Apache-2.0
// The level tables in the orders in which registers look them up. Local to the including source.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <metrale/quant/float_convert.h>
#include <metrale/quant/turbo_record.h>

namespace metrale::kernels::levels {
namespace {

using quant::KvFormat;
using quant::KvSide;

inline constexpr std::size_t kRows = quant::kTurboTableRows;
inline constexpr std::size_t kEntries = quant::kTurboMaxEntries;

// 64 bytes: entry e of row r at 8r + e; rows of four entries twice.
using Table = std::array<std::uint8_t, kRows * kEntries>;
// The same for two neighbouring groups: rows r and s at 16 (r + 8s), r first.
using PairTable = std::array<std::uint8_t, kRows * kRows * 2 * kEntries>;

// The integer of a key's level: without its half where the format adds one.
constexpr std::uint8_t key_byte(KvFormat format, std::size_t row, std::size_t entry) {
  switch (format) {
    case KvFormat::kTurbo4:
      return quant::kTurbo4KRows[row][entry];
    case KvFormat::kTurbo3:
      return static_cast<std::uint8_t>(quant::kTurbo3KRows[row][entry]);
    default:
      return static_cast<std::uint8_t>(quant::kTurbo2KRows[row][entry]);
  }
}

template <class Byte>
constexpr Table make_table(KvFormat format, Byte&& byte) {
  Table table{};
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = byte(format, i / kEntries, i % kEntries % quant::turbo_entries(format));
  }
  return table;
}

constexpr PairTable make_pairs(const Table& table) {
  PairTable pairs{};
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::size_t pair = i / 16;
    const std::size_t row = i / 8 % 2 == 0 ? pair % 8 : pair / 8;
    pairs[i] = table[row * 8 + i % 8];
  }
  return pairs;
}

constexpr Table key_table(KvFormat format, std::uint8_t flip) {
  return make_table(format, [flip](KvFormat f, std::size_t row, std::size_t entry) {
    return static_cast<std::uint8_t>(key_byte(f, row, entry) ^ flip);
  });
}
// The upper and lower bytes of values' integers, of their opposites where kOpposite.
template <bool kOpposite = false>
constexpr Table upper_table(KvFormat format) {
  return make_table(format, [](KvFormat f, std::size_t row, std::size_t entry) {
    const std::int32_t integer = value_integer(f, row, entry);
    return static_cast<std::uint8_t>((kOpposite ? -integer : integer) >> 8);
  });
}
constexpr Table lower_table(KvFormat format) {
  return make_table(format, [](KvFormat f, std::size_t row, std::size_t entry) {
    return static_cast<std::uint8_t>(value_integer(f, row, entry));
  });
}

constexpr bool values_are_integers(KvFormat format) {
  for (std::uint32_t row = 0; row < kRows; ++row) {
    for (std::uint32_t entry = 0; entry < quant::turbo_entries(format); ++entry) {
      const auto integer = static_cast<float>(value_integer(format, row, entry));
      if (integer * value_unit(format) != quant::turbo_level(format, KvSide::kValue, row, entry))
        return false;
    }
  }
  return true;
}
static_assert(values_are_integers(KvFormat::kTurbo4) && values_are_integers(KvFormat::kTurbo3) &&
              values_are_integers(KvFormat::kTurbo2));

}  // namespace
}  // namespace metrale::kernels::levels
