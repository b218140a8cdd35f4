// SPDX-License-Identifier: Apache-2.0
// Levels of values with AVX2. Local to the including source.
//
// Integers go by pairs of keys, k and k + 4 of an octet: 64 dimensions of a pair are eight vectors, two for
// groups i and i + 4 of eight, first elements 0 to 3 of both groups, then 4 to 7. E4M3 goes key by key.
#pragma once

#include "kernels/attention/levels_avx2_read.h"

namespace metrale::kernels::levels {
namespace {

// The tables of the rows of a pair's two keys, for each of eight groups.
class KeyPairRows {
 public:
  [[gnu::always_inline]] KeyPairRows(const StoredTile& tile, std::size_t key, std::size_t dim) {
    const std::uint64_t* rows = tile.rows[dim / 128] + key;
    const std::size_t shift = 3 + dim % 128 / 8 * 3;
    const std::uint64_t first = _pdep_u64(rows[0] >> shift, 00707070707070707);
    const std::uint64_t second = _pdep_u64(rows[4] >> shift, 07070707070707070);
    both_ = (first | second) << 4;
  }
  // Of groups i and i + 4.
  [[nodiscard]] __m256i tables(const PairTable& table, std::size_t i) const {
    return load_two(at(table, i), at(table, i + 4));
  }

 private:
  [[nodiscard]] const std::uint8_t* at(const PairTable& table, std::size_t group) const {
    return table.data() + (both_ >> (6 * group) & (63 * 16));
  }
  std::uint64_t both_;  // offsets of tables, six bits apart
};

// Looks integers of groups i and i + 4 up; `index` has the keys' elements in turns.
template <KvFormat kFormat>
[[gnu::always_inline]] inline void store_integers(const KeyPairRows& rows, std::size_t i, __m256i index,
                                                  __m256i sign, std::byte* out) {
  static constexpr PairTable kUpper = make_pairs(upper_table(kFormat));
  static constexpr PairTable kLower = make_pairs(lower_table(kFormat));
  const __m256i upper = _mm256_shuffle_epi8(rows.tables(kUpper, i), index);
  const __m256i lower = _mm256_shuffle_epi8(rows.tables(kLower, i), index);
  __m256i low = _mm256_unpacklo_epi8(lower, upper);
  __m256i high = _mm256_unpackhi_epi8(lower, upper);
  if constexpr (kFormat == KvFormat::kTurbo4) {
    // A word that is negative, or positive, as the sign is.
    const __m256i one = _mm256_set1_epi8(1);
    low = _mm256_sign_epi16(low, _mm256_unpacklo_epi8(one, sign));
    high = _mm256_sign_epi16(high, _mm256_unpackhi_epi8(one, sign));
  }
  store32(low, out + i * 64);
  store32(high, out + i * 64 + 32);
}

// Asks for what a pair of keys has of what is needed soon, 64 dimensions of it.
[[gnu::always_inline]] inline void ask_pair(const StoredTile& tile, std::size_t pair, std::size_t dim) {
  const Soon& soon = tile.soon[pair / 4];
  if (pair % 4 == 0 && dim == 0) ask_headers(soon);
  const std::size_t parts = tile.head_dim - dim < 64 ? (tile.head_dim - dim) / 8 : 8;
  ask(soon, dim / 8 + parts * (pair % 4) / 4, dim / 8 + parts * (pair % 4 + 1) / 4);
}

void read_turbo4_integers(const StoredTile& tile, std::byte* levels) {
  for (std::size_t pair = 0; pair < tile.keys / 2; ++pair) {
    const std::size_t key = first_key(pair);
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 64) {
      ask_pair(tile, pair, dim);
      const std::size_t bytes = (tile.head_dim - dim) / 2;
      const __m256i first = load_codes(tile.codes[key] + dim / 2, bytes);
      const __m256i second = load_codes(tile.codes[key + 4] + dim / 2, bytes);
      const KeyPairRows rows(tile, key, dim);
      std::byte* out = levels + (pair * tile.value_stride + dim) * 4;
      const Turbo4Codes even = split_interleaved(_mm256_unpacklo_epi32(first, second));
      const Turbo4Codes odd = split_interleaved(_mm256_unpackhi_epi32(first, second));
#pragma GCC unroll 2
      for (std::size_t i = 0; i < 2; ++i) {
        store_integers<KvFormat::kTurbo4>(rows, i, even.index[i], even.sign[i], out);
        store_integers<KvFormat::kTurbo4>(rows, i + 2, odd.index[i], odd.sign[i], out);
      }
    }
  }
}

template <KvFormat kFormat>
void read_turbo_integers(const StoredTile& tile, std::byte* levels) {
  alignas(32) std::uint8_t codes[kOctet][kMostDims];
  const __m256i second = _mm256_set1_epi16(0x0800);
  for (std::size_t pair = 0; pair < tile.keys / 2; ++pair) {
    const std::size_t key = first_key(pair);
    if (pair % 4 == 0) {
      for (std::size_t i = 0; i < kOctet; ++i) read_codes<kFormat>(tile, key + i, true, codes[i]);
    }
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 64) {
      ask_pair(tile, pair, dim);
      const KeyPairRows rows(tile, key, dim);
      std::byte* out = levels + (pair * tile.value_stride + dim) * 4;
#pragma GCC unroll 2
      for (std::size_t i = 0; i < 4; i += 2) {
        const std::uint8_t* from = codes[pair % 4] + dim + i * 8;
        const __m256i a = load_two(from, from + 32);
        const __m256i b = load_two(from + 4 * kMostDims, from + 4 * kMostDims + 32);
        const auto index = [second](__m256i turns) {
          return _mm256_or_si256(_mm256_and_si256(turns, _mm256_set1_epi8(7)), second);
        };
        store_integers<kFormat>(rows, i, index(_mm256_unpacklo_epi8(a, b)), second, out);
        store_integers<kFormat>(rows, i + 1, index(_mm256_unpackhi_epi8(a, b)), second, out);
      }
    }
  }
}

// Sixteen bytes at `dim` and at `dim` + 32, where the vector has them.
__m256i load_some(const StoredTile& tile, std::size_t key, std::size_t dim) {
  if (dim >= tile.head_dim) return _mm256_setzero_si256();
  const std::byte* from = tile.codes[key] + dim;
  if (dim + 32 >= tile.head_dim) return _mm256_zextsi128_si256(load16(from));
  return load_two(from, from + 32);
}

void read_byte_integers(const StoredTile& tile, std::byte* levels) {
  for (std::size_t pair = 0; pair < tile.keys / 2; ++pair) {
    const std::size_t key = first_key(pair);
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 64) {
      ask_pair(tile, pair, dim);
      std::byte* out = levels + (pair * tile.value_stride + dim) * 4;
      for (std::size_t i = 0; i < 4; i += 2) {
        const __m256i a = load_some(tile, key, dim + i * 8);
        const __m256i b = load_some(tile, key + 4, dim + i * 8);
        const auto store = [](__m256i turns, std::byte* to) {
          const __m256i signs = _mm256_cmpgt_epi8(_mm256_setzero_si256(), turns);
          store32(_mm256_unpacklo_epi8(turns, signs), to);
          store32(_mm256_unpackhi_epi8(turns, signs), to + 32);
        };
        store(_mm256_unpacklo_epi8(a, b), out + i * 64);
        store(_mm256_unpackhi_epi8(a, b), out + i * 64 + 64);
      }
    }
  }
}

void read_integers(const StoredTile& tile, std::byte* levels) {
  switch (tile.format) {
    case KvFormat::kTurbo4:
      return read_turbo4_integers(tile, levels);
    case KvFormat::kTurbo3:
      return read_turbo_integers<KvFormat::kTurbo3>(tile, levels);
    case KvFormat::kTurbo2:
      return read_turbo_integers<KvFormat::kTurbo2>(tile, levels);
    default:
      return read_byte_integers(tile, levels);
  }
}

// ---- E4M3, as BF16: pairs of dimensions i and i + 8 of sixteen, as Isa::load_pairs() takes them.

__m256i load_eight(const std::byte* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}

// As FP32 numbers.
__m256i e4m3_floats(const std::byte* from) {
  const __m256i codes = load_eight(from);
  const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7F));
  // With the same fields, 2^120 too small; exact, and subnormals come out right.
  const __m256 value =
      _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), _mm256_set1_ps(0x1p120F));
  const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
  const __m256i known = _mm256_blendv_epi8(_mm256_castps_si256(value), _mm256_set1_epi32(0x7FC00000), nan);
  return _mm256_or_si256(known, _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)), 24));
}
void read_values(const StoredTile& tile, std::byte* levels) {
  for (std::size_t key = 0; key < tile.keys; ++key) {
    ask(tile.soon[key / kOctet], key % kOctet * (tile.head_dim / 64),
        (key % kOctet + 1) * (tile.head_dim / 64));
    if (key % kOctet == 0) ask_headers(tile.soon[key / kOctet]);
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 16) {
      // BF16 numbers are the upper halves of FP32 numbers.
      const __m256i first = e4m3_floats(tile.codes[key] + dim);
      const __m256i second = e4m3_floats(tile.codes[key] + dim + 8);
      store32(_mm256_or_si256(_mm256_srli_epi32(first, 16), second),
              levels + (key * tile.value_stride + dim) * 2);
    }
  }
}

}  // namespace
}  // namespace metrale::kernels::levels
