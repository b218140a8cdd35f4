// SPDX-License-Identifier: Apache-2.0
// Levels of keys with AVX-512: eight keys at a time, a 64-bit lane for each. Local to the including source.
//
// A control of multishift says for each byte of the result from which bit of its 64-bit lane on it is taken;
// what it takes beyond the bits of a code is masked off or not looked at.
#pragma once

#include <type_traits>

#include "kernels/attention/levels_avx512.h"
#include "kernels/attention/levels_body.h"

namespace metrale::kernels::levels {
namespace {

// Bytes [offset, offset + 64) of eight keys: column i has the i-th 64 bits of each.
struct Columns {
  __m512i at[8];
};

[[gnu::always_inline]] inline Columns load_columns(const std::byte* const* codes, std::size_t offset,
                                                   std::size_t bytes) {
  const __mmask64 mask = bytes >= 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
  __m512i low[4];
  __m512i high[4];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    const __m512i a = _mm512_maskz_loadu_epi8(mask, codes[2 * i] + offset);
    const __m512i b = _mm512_maskz_loadu_epi8(mask, codes[2 * i + 1] + offset);
    low[i] = _mm512_unpacklo_epi64(a, b);
    high[i] = _mm512_unpackhi_epi64(a, b);
  }
  Columns columns;
  const auto gather = [](const __m512i(&from)[4], __m512i& c0, __m512i& c2, __m512i& c4, __m512i& c6) {
    const __m512i a = _mm512_shuffle_i64x2(from[0], from[1], 0x88);
    const __m512i b = _mm512_shuffle_i64x2(from[2], from[3], 0x88);
    const __m512i c = _mm512_shuffle_i64x2(from[0], from[1], 0xDD);
    const __m512i d = _mm512_shuffle_i64x2(from[2], from[3], 0xDD);
    c0 = _mm512_shuffle_i64x2(a, b, 0x88);
    c2 = _mm512_shuffle_i64x2(c, d, 0x88);
    c4 = _mm512_shuffle_i64x2(a, b, 0xDD);
    c6 = _mm512_shuffle_i64x2(c, d, 0xDD);
  };
  gather(low, columns.at[0], columns.at[2], columns.at[4], columns.at[6]);
  gather(high, columns.at[1], columns.at[3], columns.at[5], columns.at[7]);
  return columns;
}

// Controls, one for all lanes.
struct KeyControls {
  std::uint64_t nibbles[64] = {};  // eight fields 4 bits apart, from bit i on
  std::uint64_t rows[16] = {};     // the row of group i, in bits 3 to 5
  // turbo4: four nibbles of each word, the lower and the upper ones, and the rows of both groups.
  std::uint64_t halves[2] = {};
  std::uint64_t pair_rows[8] = {};
  std::uint64_t tail = 0;  // turbo3: fields 2 bits apart of the upper word

  constexpr KeyControls() {
    for (std::size_t e = 0; e < 8; ++e) {
      const auto at = [e](std::size_t bit) { return std::uint64_t{bit % 64} << (8 * e); };
      for (std::size_t i = 0; i < 64; ++i) nibbles[i] |= at(i + 4 * e);
      for (std::size_t i = 0; i < 16; ++i) rows[i] |= at(3 * i);
      for (std::size_t i = 0; i < 2; ++i) halves[i] |= at(e / 4 * 32 + 16 * i + e % 4 * 4);
      for (std::size_t i = 0; i < 8; ++i) pair_rows[i] |= at(3 * (2 * i + e / 4));
      tail |= at(32 + 2 * e);
    }
  }
};
constexpr KeyControls kKeyControls;

// What a loop over octets keeps at hand.
template <KvFormat kFormat>
struct KeyReader {
  static constexpr Table kTable = key_table(kFormat, kUnsigned);

  const KeyControls* controls = &kKeyControls;
  __m512i table = load_table(kTable);
  __m512i seven = keep(every_byte(7));
  __m512i four = keep(every_byte(4));
  __m512i eight = keep(every_byte(8));
  __m512i one = keep(every_byte(1));
  __m512i ones = keep(every_byte(-1));

  KeyReader() { asm("" : "+r"(controls)); }  // to be loaded from, as keep() has it

  static __m512i take(std::uint64_t control, __m512i from) {
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(static_cast<std::int64_t>(control)), from);
  }

  // Fields 4 bits apart of word `word`, from its bit `first` on.
  [[gnu::always_inline]] __m512i nibbles(const Columns& columns, std::size_t word, std::size_t first) const {
    return take(controls->nibbles[word % 2 * 32 + first], columns.at[word / 2]);
  }

  [[gnu::always_inline]] __m512i codes(const Columns& columns, std::size_t group, std::size_t groups) const {
    if constexpr (kFormat == KvFormat::kTurbo2) return nibbles(columns, group / 2, group % 2 * 2);
    const std::size_t word = group / 4 * 3;  // the first of four groups' three
    if (groups == 10 && group == 9) {        // what 16 dimensions leave
      const __m512i low = take(controls->tail, columns.at[(word + 1) / 2]);
      return _mm512_ternarylogic_epi64(nibbles(columns, word, 1), low, four, kSelect);
    }
    if (group % 4 != 3) return nibbles(columns, word + group % 4, 0);
    const __m512i two =
        _mm512_ternarylogic_epi64(nibbles(columns, word, 3), nibbles(columns, word + 1, 2), one, kSelect);
    return _mm512_ternarylogic_epi64(nibbles(columns, word + 2, 1), two, four, kSelect);
  }

  // 64 levels, made unsigned.
  [[gnu::always_inline]] __m512i levels(const Columns& columns, __m512i rows, std::size_t group,
                                        std::size_t groups) const {
    const __m512i row = take(controls->rows[group], rows);
    const __m512i index = _mm512_ternarylogic_epi64(codes(columns, group, groups), row, seven, kSelect);
    return _mm512_permutexvar_epi8(index, table);
  }

  // turbo4: the lower or the upper elements of two groups, in whose bytes the signs lie already.
  [[gnu::always_inline]] __m512i half_levels(__m512i column, __m512i row, std::size_t half) const {
    const __m512i codes = take(controls->halves[half], column);
    const __m512i index = _mm512_ternarylogic_epi64(codes, row, seven, kSelect);
    const __m512i level = _mm512_permutexvar_epi8(index, table);
    const __mmask64 negative = half == 0 ? _mm512_test_epi8_mask(column, eight) : _mm512_movepi8_mask(column);
    return _mm512_mask_sub_epi8(level, negative, ones, level);
  }

  // Calls use(group, levels) for the groups of a record of an octet of keys; turbo4's go by pairs, first the
  // lower four elements of both, then the upper ones: in the order of Queries::upper.
  template <class Use>
  [[gnu::always_inline]] void for_groups(const StoredTile& tile, std::size_t octet, std::size_t record,
                                         const Use& use) const {
    constexpr std::size_t kBits = kFormat == KvFormat::kTurbo4 ? 4 : kFormat == KvFormat::kTurbo3 ? 3 : 2;
    const std::size_t left = tile.head_dim / 8 - record * 16;
    const std::size_t groups = left < 16 ? left : 16;
    const Columns columns = load_columns(tile.codes + octet * kOctet, record * 16 * kBits, groups * kBits);
    const __m512i rows = _mm512_loadu_si512(&tile.rows[record][octet * kOctet]);
#pragma GCC unroll 16
    for (std::size_t group = 0; group < 16; ++group) {
      if (group >= groups) break;
      if constexpr (kFormat == KvFormat::kTurbo4) {
        const __m512i row = take(controls->pair_rows[group / 2], rows);
        use(group, half_levels(columns.at[group / 2], row, group % 2));
      } else {
        use(group, levels(columns, rows, group, groups));
      }
    }
  }
};

// turbo8i: the codes are the levels.
template <>
struct KeyReader<KvFormat::kTurbo8i> {
  __m512i flip = keep(every_byte(kUnsigned));

  template <class Use>
  [[gnu::always_inline]] void for_groups(const StoredTile& tile, std::size_t octet, std::size_t record,
                                         const Use& use) const {
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t at = record * 128 + half * 64;
      if (at >= tile.head_dim) return;
      const std::size_t bytes = tile.head_dim - at < 64 ? tile.head_dim - at : 64;
      const Columns columns = load_columns(tile.codes + octet * kOctet, at, bytes);
#pragma GCC unroll 8
      for (std::size_t group = 0; group < 8; ++group) {
        if (group * 8 >= bytes) break;
        use(half * 8 + group, _mm512_xor_si512(columns.at[group], flip));
      }
    }
  }
};

template <KvFormat kFormat>
void read_keys_of(const StoredTile& tile, std::byte* levels) {
  const KeyReader<kFormat> reader;
  for (std::size_t octet = 0; octet < tile.keys / kOctet; ++octet) {
    ask(tile.soon[octet], 0, tile.head_dim / 8);
    ask_headers(tile.soon[octet]);
    for (std::size_t record = 0; record * 128 < tile.head_dim; ++record) {
      std::byte* out = levels + (octet * tile.key_groups + record * 16) * 64;
      reader.for_groups(tile, octet, record, [out](std::size_t group, __m512i level) {
        _mm512_store_si512(out + group * 64, level);
      });
    }
  }
}

void read_keys(const StoredTile& tile, std::byte* levels) {
  with_integer_format(tile.format, [&](auto format) { read_keys_of<format()>(tile, levels); });
}

}  // namespace
}  // namespace metrale::kernels::levels
