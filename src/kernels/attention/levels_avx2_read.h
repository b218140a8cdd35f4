// SPDX-License-Identifier: Apache-2.0
// Levels of keys with AVX2, and what values share: two groups at a time look up the table of their two rows.
// Local to the including source.
#pragma once

#include <cstring>
#include <immintrin.h>

#include "kernels/attention/levels.h"
#include "kernels/attention/levels_body.h"
#include "kernels/attention/levels_tables.h"

namespace metrale::kernels::levels {
namespace {

constexpr std::uint64_t kNibbles = 0x0F0F0F0F0F0F0F0F;
constexpr std::uint64_t kEveryByte = 0x0101010101010101;

template <class T>
T load_as(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
void store_as(std::uint64_t value, std::uint8_t* to) {
  std::memcpy(to, &value, sizeof value);
}

__m128i load16(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
__m256i load_two(const void* low, const void* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1);
}
void store32(__m256i value, std::byte* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

// ---- codes of turbo3 and turbo2: a byte each. What stands beyond a vector's means nothing.

// Eight nibbles of a word, a byte each.
std::uint64_t spread(std::uint32_t word) {
  return _pdep_u64(word, kNibbles);
}

// 16 elements.
void turbo2_codes(const std::byte* from, std::uint8_t* codes) {
  const std::uint64_t both = spread(load_as<std::uint32_t>(from));
  store_as(both & (3 * kEveryByte), codes);
  store_as((both >> 2) & (3 * kEveryByte), codes + 8);
}

// Group `group` of four that share the three words.
std::uint64_t turbo3_group(const std::byte* words, std::size_t group) {
  if (group < 3) return spread(load_as<std::uint32_t>(words + 4 * group)) & (7 * kEveryByte);
  return ((spread(load_as<std::uint32_t>(words)) >> 3) & kEveryByte) |
         ((spread(load_as<std::uint32_t>(words + 4)) >> 2) & (2 * kEveryByte)) |
         ((spread(load_as<std::uint32_t>(words + 8)) >> 1) & (4 * kEveryByte));
}

void turbo3_key_codes(const std::byte* from, std::size_t head_dim, std::uint8_t* codes) {
  std::size_t dim = 0;
  for (; dim + 32 <= head_dim; dim += 32, from += 12) {
    for (std::size_t group = 0; group < 4; ++group) {
      store_as(turbo3_group(from, group), codes + dim + group * 8);
    }
  }
  if (dim == head_dim) return;
  const std::uint64_t first = spread(load_as<std::uint32_t>(from));
  store_as(first & (7 * kEveryByte), codes + dim);
  const std::uint64_t low = _pdep_u64(load_as<std::uint16_t>(from + 4), 3 * kEveryByte);
  store_as(low | ((first >> 1) & (4 * kEveryByte)), codes + dim + 8);
}

void turbo3_value_codes(const std::byte* from, bool second, std::size_t head_dim, std::uint8_t* codes) {
  for (std::size_t dim = 0; dim < head_dim; dim += 16, from += 12) {
    store_as(turbo3_group(from, second ? 2 : 0), codes + dim);
    store_as(turbo3_group(from, second ? 3 : 1), codes + dim + 8);
  }
}

template <KvFormat kFormat>
void read_codes(const StoredTile& tile, std::size_t key, bool value, std::uint8_t* codes) {
  const std::byte* from = tile.codes[key];
  if constexpr (kFormat == KvFormat::kTurbo2) {
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 16) turbo2_codes(from + dim / 4, codes + dim);
  } else if (value) {
    turbo3_value_codes(from, key % 8 >= 4, tile.head_dim, codes);
  } else {
    turbo3_key_codes(from, tile.head_dim, codes);
  }
}

// ---- levels

// The table of the rows of groups 2i and 2i + 1 of the record.
const std::uint8_t* pair_table(const PairTable& table, std::uint64_t rows, std::size_t i) {
  return table.data() + ((rows >> (3 + 6 * i)) & 63) * 16;
}

// Codes of two groups in each half, as indices of a table of two rows.
__m256i indices(__m256i codes) {
  const __m256i second = _mm256_set_epi64x(8 * kEveryByte, 0, 8 * kEveryByte, 0);
  return _mm256_or_si256(_mm256_and_si256(codes, _mm256_set1_epi8(7)), second);
}

// Sixteen dimensions of four keys: stores the first eight of each, then the second eight.
void store_keys(__m256i first_third, __m256i second_fourth, std::byte* out) {
  store32(_mm256_unpacklo_epi64(first_third, second_fourth), out);
  store32(_mm256_unpackhi_epi64(first_third, second_fourth), out + 64);
}

template <KvFormat kFormat>
__m256i key_levels(const StoredTile& tile, std::size_t key, std::size_t dim, const std::uint8_t* codes) {
  static constexpr PairTable kTable = make_pairs(key_table(kFormat, 0));
  const std::size_t record = dim / 128;
  const std::size_t pair = dim % 128 / 16;
  const __m256i code = load_two(codes, codes + 2 * kMostDims);
  const __m256i table = load_two(pair_table(kTable, tile.rows[record][key], pair),
                                 pair_table(kTable, tile.rows[record][key + 2], pair));
  return _mm256_shuffle_epi8(table, indices(code));
}

template <KvFormat kFormat>
void read_turbo_keys(const StoredTile& tile, std::byte* levels) {
  alignas(32) std::uint8_t codes[kOctet][kMostDims];
  for (std::size_t first = 0; first < tile.keys; first += kOctet) {
    ask(tile.soon[first / kOctet], 0, tile.head_dim / 8);
    ask_headers(tile.soon[first / kOctet]);
    for (std::size_t i = 0; i < kOctet; ++i) read_codes<kFormat>(tile, first + i, false, codes[i]);
    std::byte* out = levels + first / kOctet * tile.key_groups * 64;
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 16, out += 2 * 64) {
      for (std::size_t half = 0; half < kOctet; half += 4) {
        store_keys(key_levels<kFormat>(tile, first + half, dim, codes[half] + dim),
                   key_levels<kFormat>(tile, first + half + 1, dim, codes[half + 1] + dim), out + half * 8);
      }
    }
  }
}

// ---- turbo4: 64 dimensions at a time, whose codes and signs lie as the table look-up takes them

// 32 bytes, of which `bytes` exist.
[[gnu::always_inline]] inline __m256i load_codes(const std::byte* from, std::size_t bytes) {
  if (bytes >= 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  alignas(32) std::byte copy[32] = {};
  std::memcpy(copy, from, bytes);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(copy));
}

// Addresses of the tables of four pairs of groups: rows[i] is that of groups 2i and 2i + 1.
struct PairRows {
  std::size_t at[4];

  [[gnu::always_inline]] PairRows(const StoredTile& tile, std::size_t key, std::size_t dim) {
    const std::uint64_t rows = tile.rows[dim / 128][key] >> (dim % 128 / 8 * 3);
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) at[i] = (rows << 4 >> (3 + 6 * i)) & (63 * 16);
  }
  // Tables of pairs i and i + 2.
  [[nodiscard]] __m256i tables(const PairTable& table, std::size_t i) const {
    return load_two(table.data() + at[i], table.data() + at[i + 2]);
  }
};

// Of each 16 bytes of codes, four groups: indices of a table of two rows, and signs in bit 7.
struct Turbo4Codes {
  __m256i index[2];
  __m256i sign[2];
};

// Pairs of groups one after the other: groups 0, 1, 4, 5, then 2, 3, 6, 7.
[[gnu::always_inline]] inline Turbo4Codes split_codes(__m256i words) {
  const __m256i mask = _mm256_set1_epi8(7);
  const __m256i second = _mm256_set1_epi64x(static_cast<std::int64_t>(0x0808080800000000));
  const __m256i even = _mm256_or_si256(_mm256_and_si256(words, mask), second);
  const __m256i odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(words, 4), mask), second);
  const __m256i low_signs = _mm256_slli_epi16(words, 4);
  return {{_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd)},
          {_mm256_unpacklo_epi32(low_signs, words), _mm256_unpackhi_epi32(low_signs, words)}};
}

// The same with the elements of two words in turns, for words of two keys.
[[gnu::always_inline]] inline Turbo4Codes split_interleaved(__m256i words) {
  const __m256i turns =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
  const __m256i mixed = _mm256_shuffle_epi8(words, turns);
  const __m256i mask = _mm256_set1_epi8(7);
  const __m256i second = _mm256_set1_epi16(0x0800);
  const __m256i even = _mm256_or_si256(_mm256_and_si256(mixed, mask), second);
  const __m256i odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(mixed, 4), mask), second);
  const __m256i low_signs = _mm256_slli_epi16(mixed, 4);
  return {{_mm256_unpacklo_epi16(even, odd), _mm256_unpackhi_epi16(even, odd)},
          {_mm256_unpacklo_epi64(low_signs, mixed), _mm256_unpackhi_epi64(low_signs, mixed)}};
}

struct KeyLevels {
  __m256i at[2];
};

[[gnu::always_inline]] inline KeyLevels turbo4_key(const StoredTile& tile, std::size_t key, std::size_t dim) {
  static constexpr PairTable kTable = make_pairs(key_table(KvFormat::kTurbo4, 0));
  const PairRows rows(tile, key, dim);
  const Turbo4Codes codes = split_codes(load_codes(tile.codes[key] + dim / 2, (tile.head_dim - dim) / 2));
  KeyLevels levels;
#pragma GCC unroll 2
  for (std::size_t i = 0; i < 2; ++i) {
    const __m256i level = _mm256_shuffle_epi8(rows.tables(kTable, i), codes.index[i]);
    levels.at[i] = _mm256_xor_si256(level, _mm256_cmpgt_epi8(_mm256_setzero_si256(), codes.sign[i]));
  }
  return levels;
}

// The halves of `two` belong to groups `group` and `group` + 4.
[[gnu::always_inline]] inline void store_groups(__m256i two, std::size_t group, std::size_t groups,
                                                std::byte* out) {
  __m128i* to = reinterpret_cast<__m128i*>(out + group * 64);
  if (group < groups) _mm_storeu_si128(to, _mm256_castsi256_si128(two));
  if (group + 4 < groups) _mm_storeu_si128(to + 4 * 4, _mm256_extracti128_si256(two, 1));
}

void read_turbo4_keys(const StoredTile& tile, std::byte* levels) {
  for (std::size_t key = 0; key < tile.keys; key += 2) {
    if (key % kOctet == 0) {
      ask(tile.soon[key / kOctet], 0, tile.head_dim / 8);
      ask_headers(tile.soon[key / kOctet]);
    }
    std::byte* out = levels + key / kOctet * tile.key_groups * 64 + key % kOctet * 8;
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 64, out += 8 * 64) {
      const KeyLevels a = turbo4_key(tile, key, dim);
      const KeyLevels b = turbo4_key(tile, key + 1, dim);
      const std::size_t groups = (tile.head_dim - dim) / 8;
#pragma GCC unroll 2
      for (std::size_t i = 0; i < 2; ++i) {
        store_groups(_mm256_unpacklo_epi64(a.at[i], b.at[i]), 2 * i, groups, out);
        store_groups(_mm256_unpackhi_epi64(a.at[i], b.at[i]), 2 * i + 1, groups, out);
      }
    }
  }
}

void read_key_integers(const StoredTile& tile, std::byte* levels) {
  for (std::size_t first = 0; first < tile.keys; first += kOctet) {
    ask(tile.soon[first / kOctet], 0, tile.head_dim / 8);
    ask_headers(tile.soon[first / kOctet]);
    std::byte* out = levels + first / kOctet * tile.key_groups * 64;
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 16, out += 2 * 64) {
      for (std::size_t half = 0; half < kOctet; half += 4) {
        const std::byte* const* keys = tile.codes + first + half;
        store_keys(load_two(keys[0] + dim, keys[2] + dim), load_two(keys[1] + dim, keys[3] + dim),
                   out + half * 8);
      }
    }
  }
}

void read_keys(const StoredTile& tile, std::byte* levels) {
  switch (tile.format) {
    case KvFormat::kTurbo4:
      return read_turbo4_keys(tile, levels);
    case KvFormat::kTurbo3:
      return read_turbo_keys<KvFormat::kTurbo3>(tile, levels);
    case KvFormat::kTurbo2:
      return read_turbo_keys<KvFormat::kTurbo2>(tile, levels);
    default:
      return read_key_integers(tile, levels);
  }
}

}  // namespace
}  // namespace metrale::kernels::levels
