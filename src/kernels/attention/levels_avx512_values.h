// SPDX-License-Identifier: Apache-2.0
// Levels of values with AVX-512. Local to the including source.
//
// Integers go by pairs of keys, k and k + 4 of an octet, whose products one instruction adds up. 64
// dimensions of a pair are four vectors of 16, of groups 0 to 3, then of 4 to 7: first elements 0 to 3 of the
// groups, then 4 to 7. E4M3 goes key by key.
#pragma once

#include <type_traits>

#include "kernels/attention/levels_avx512.h"
#include "kernels/attention/levels_body.h"

namespace metrale::kernels::levels {
namespace {

// Upper and lower bytes of the integers are looked up in an order in which unpacking them gives pairs. Byte i
// of 64 belongs to the first key of the pair, or to the second one where i is odd.
constexpr std::size_t kPairs = kKeyTile / 2;
constexpr std::size_t pair_group(std::size_t byte) {  // of four
  return byte / 16;
}
constexpr std::size_t pair_element(std::size_t byte) {
  return byte / 8 % 2 * 4 + byte % 8 / 2;
}

// A word for each key of the pair in every 64-bit lane: first(group) of the first key's codes, second(group)
// of the second one's.
template <class First, class Second>
constexpr auto make_words(First&& first, Second&& second) {
  std::array<std::uint32_t, 16> words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t group = pair_group(i * 4);
    words[i] = static_cast<std::uint32_t>(i % 2 == 0 ? first(group) : 16 + second(group));
  }
  return words;
}
// A control: bit(group, element) of the key's word.
template <class Bit>
constexpr auto make_fields(Bit&& bit) {
  return make_bytes([&](std::size_t i) {
    return i % 2 * 32 + static_cast<std::size_t>(bit(pair_group(i), pair_element(i)));
  });
}

constexpr std::size_t same(std::size_t group) {
  return group;
}
constexpr auto kTurbo4Words = make_words(same, same);
constexpr auto kTurbo4Codes = make_fields([](std::size_t, std::size_t e) { return 4 * e; });
constexpr auto kTurbo4Signs =
    make_fields([](std::size_t, std::size_t e) { return e < 4 ? 8 * e + 3 : 8 * (e - 4) + 7; });

constexpr std::size_t half(std::size_t group) {
  return group / 2;
}
constexpr auto kTurbo2Words = make_words(half, half);
constexpr auto kTurbo2Codes = make_fields([](std::size_t g, std::size_t e) { return 4 * e + g % 2 * 2; });

// turbo3: both keys share three words for each 16 dimensions. The first key has a nibble of the first word,
// or of the second one; the second key has one of the third word, or a bit of each.
constexpr auto kTurbo3Words = make_words([](std::size_t g) { return g / 2 * 3 + g % 2; },
                                         [](std::size_t g) { return g / 2 * 3 + (g % 2 == 0 ? 2 : 0); });
constexpr auto kTurbo3Third =
    make_words([](std::size_t g) { return g / 2 * 3 + 2; }, [](std::size_t g) { return g / 2 * 3 + 2; });
constexpr bool has_bits(std::size_t byte) {
  return byte % 2 == 1 && pair_group(byte) % 2 == 1;
}
constexpr std::array<std::uint8_t, 64> kTurbo3Codes[3] = {
    make_bytes([](std::size_t i) { return i % 2 * 32 + 4 * pair_element(i) + (has_bits(i) ? 3 : 0); }),
    make_bytes([](std::size_t i) { return 4 * pair_element(i) + 2; }),
    make_bytes([](std::size_t i) { return 4 * pair_element(i) + 1; })};
constexpr std::array<std::uint8_t, 64> kTurbo3Mask[3] = {
    make_bytes([](std::size_t i) { return has_bits(i) ? 1 : 7; }),
    make_bytes([](std::size_t i) { return has_bits(i) ? 2 : 0; }),
    make_bytes([](std::size_t i) { return has_bits(i) ? 4 : 0; })};

// The rows of the lower and of the upper four groups of 64 dimensions, in bits 3 to 5.
constexpr std::array<std::uint8_t, 64> kRowFields[2] = {
    make_fields([](std::size_t g, std::size_t) { return 3 * g; }),
    make_fields([](std::size_t g, std::size_t) { return 3 * g + 12; })};

__m512i load_bytes(const std::array<std::uint8_t, 64>& bytes) {
  return _mm512_loadu_si512(bytes.data());
}
__m512i load_words(const std::array<std::uint32_t, 16>& words) {
  return _mm512_loadu_si512(words.data());
}

// The rows of a tile's pairs, as kRowFields takes them.
class PairRows {
 public:
  PairRows(const StoredTile& tile, std::size_t dim) {
    const __m128i shift = _mm_cvtsi64_si128(static_cast<std::int64_t>(dim % 128 / 8 * 3));
    for (std::size_t key = 0; key < tile.keys; key += kOctet) {
      const auto* rows = reinterpret_cast<const __m256i*>(tile.rows[dim / 128] + key);
      const __m256i first = _mm256_srl_epi64(_mm256_loadu_si256(rows), shift);
      const __m256i second = _mm256_srl_epi64(_mm256_loadu_si256(rows + 1), shift);
      _mm256_store_si256(reinterpret_cast<__m256i*>(at_ + key / 2),
                         _mm256_blend_epi32(first, _mm256_slli_epi64(second, 32), 0xAA));
    }
  }
  [[nodiscard]] __m512i of(std::size_t pair) const {
    return _mm512_set1_epi64(static_cast<std::int64_t>(at_[pair]));
  }

 private:
  alignas(32) std::uint64_t at_[kPairs];
};

// Reads 32 dimensions of a pair, or 64: two vectors each. What a loop keeps at hand.
template <KvFormat kFormat>
struct PairReader {
  static constexpr Table kUpper = upper_table(kFormat);
  static constexpr Table kOpposite = upper_table<true>(kFormat);
  static constexpr Table kLower = lower_table(kFormat);
  static constexpr std::size_t kBits = kFormat == KvFormat::kTurbo4   ? 4
                                       : kFormat == KvFormat::kTurbo3 ? 6
                                                                      : 2;

  const StoredTile& tile;
  std::size_t dim;
  PairRows rows{tile, dim};
  __m512i uppers = load_table(kUpper);
  __m512i opposites = load_table(kOpposite);
  __m512i lowers = load_table(kLower);
  __m512i seven = keep(every_byte(7));

  PairReader(const StoredTile& of, std::size_t first_dim) : tile(of), dim(first_dim) {}

  [[gnu::always_inline]] __m512i load(std::size_t key) const {
    const std::byte* from = tile.codes[key] + dim / 8 * kBits;
    const std::size_t left = tile.head_dim - dim;
    if (left < 64) return _mm512_maskz_loadu_epi8((__mmask64{1} << (kBits * left / 8)) - 1, from);
    if constexpr (kFormat == KvFormat::kTurbo4) {
      return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    } else if constexpr (kFormat == KvFormat::kTurbo2) {
      return _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    } else {
      return _mm512_maskz_loadu_epi32(0xFFF, from);
    }
  }

  // Groups 4v to 4v + 3.
  [[gnu::always_inline]] static __m512i lanes(const std::array<std::uint32_t, 16>& words, std::size_t v,
                                              __m512i first, __m512i second) {
    constexpr int kWords = kFormat == KvFormat::kTurbo4 ? 4 : kFormat == KvFormat::kTurbo3 ? 6 : 2;
    const __m512i index = _mm512_add_epi32(load_words(words), _mm512_set1_epi32(v == 0 ? 0 : kWords));
    return _mm512_permutex2var_epi32(first, index, second);
  }

  [[gnu::always_inline]] void read(std::size_t pair, std::size_t v, __m512i first, __m512i second,
                                   __m512i* out) const {
    __m512i codes;
    __mmask64 negative = 0;
    if constexpr (kFormat == KvFormat::kTurbo4) {
      const __m512i words = lanes(kTurbo4Words, v, first, second);
      codes = _mm512_multishift_epi64_epi8(load_bytes(kTurbo4Codes), words);
      negative = _mm512_bitshuffle_epi64_mask(words, load_bytes(kTurbo4Signs));
    } else if constexpr (kFormat == KvFormat::kTurbo2) {
      codes = _mm512_multishift_epi64_epi8(load_bytes(kTurbo2Codes), lanes(kTurbo2Words, v, first, second));
    } else {
      const __m512i words = lanes(kTurbo3Words, v, first, second);
      const __m512i third = lanes(kTurbo3Third, v, first, second);
      const auto field = [](std::size_t i, __m512i from) {
        return _mm512_multishift_epi64_epi8(load_bytes(kTurbo3Codes[i]), from);
      };
      codes = _mm512_and_si512(field(0, words), load_bytes(kTurbo3Mask[0]));
      codes = _mm512_ternarylogic_epi64(codes, field(1, words), load_bytes(kTurbo3Mask[1]), kOrAnd);
      codes = _mm512_ternarylogic_epi64(codes, field(2, third), load_bytes(kTurbo3Mask[2]), kOrAnd);
    }
    const __m512i row = _mm512_multishift_epi64_epi8(load_bytes(kRowFields[v]), rows.of(pair));
    const __m512i index = _mm512_ternarylogic_epi64(codes, row, seven, kSelect);
    __m512i upper = _mm512_permutexvar_epi8(index, uppers);
    __m512i lower = _mm512_permutexvar_epi8(index, lowers);
    if constexpr (kFormat == KvFormat::kTurbo4) {
      upper = _mm512_mask_permutexvar_epi8(upper, negative, index, opposites);
      lower = _mm512_mask_sub_epi8(lower, negative, _mm512_setzero_si512(), lower);
    }
    out[0] = _mm512_unpacklo_epi8(lower, upper);
    out[1] = _mm512_unpackhi_epi8(lower, upper);
  }

  template <std::size_t V>
  [[gnu::always_inline]] void load(std::size_t pair, std::size_t, __m512i (&out)[V]) const {
    const std::size_t key = first_key(pair);
    const __m512i first = load(key);
    const __m512i second = kFormat == KvFormat::kTurbo3 ? first : load(key + 4);
#pragma GCC unroll 2
    for (std::size_t v = 0; v < V / 2; ++v) read(pair, v, first, second, out + 2 * v);
  }
};

// turbo8i: the codes are the integers.
template <>
struct PairReader<KvFormat::kTurbo8i> {
  const StoredTile& tile;
  std::size_t dim;

  PairReader(const StoredTile& of, std::size_t first_dim) : tile(of), dim(first_dim) {}

  [[gnu::always_inline]] __m512i load(std::size_t key, std::size_t v) const {
    const std::byte* from = tile.codes[key] + dim + 32 * v;
    const std::size_t left = tile.head_dim - dim - 32 * v;
    const __m256i bytes = left < 32 ? _mm256_maskz_loadu_epi8((__mmask32{1} << left) - 1, from)
                                    : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_cvtepi8_epi16(bytes);
  }
  template <std::size_t V>
  [[gnu::always_inline]] void load(std::size_t pair, std::size_t, __m512i (&out)[V]) const {
    const std::size_t key = first_key(pair);
#pragma GCC unroll 2
    for (std::size_t v = 0; v < V / 2; ++v) {
      const __m512i first = load(key, v);
      const __m512i second = load(key + 4, v);
      out[2 * v] = _mm512_unpacklo_epi16(first, second);
      out[2 * v + 1] = _mm512_unpackhi_epi16(first, second);
    }
  }
};

// Asks for what a pair of keys has of what is needed soon, 64 dimensions of it.
[[gnu::always_inline]] inline void ask_pair(const StoredTile& tile, std::size_t pair, std::size_t dim) {
  const Soon& soon = tile.soon[pair / 4];
  ask(soon, dim / 8 + pair % 4 * 2);
  ask(soon, dim / 8 + pair % 4 * 2 + 1);
  if (pair % 4 == 0 && dim == 0) ask_headers(soon);
}

void read_integers(const StoredTile& tile, std::byte* levels) {
  with_integer_format(tile.format, [&](auto format) {
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 64) {
      const PairReader<format()> reader(tile, dim);
      for (std::size_t pair = 0; pair < tile.keys / 2; ++pair) {
        ask_pair(tile, pair, dim);
        std::byte* out = levels + (pair * tile.value_stride + dim) * 4;
        __m512i vectors[4];
        if (tile.head_dim - dim > 32) {
          reader.load(pair, 0, vectors);
          _mm512_store_si512(out + 128, vectors[2]);
          _mm512_store_si512(out + 192, vectors[3]);
        } else {
          __m512i lower[2];
          reader.load(pair, 0, lower);
          vectors[0] = lower[0];
          vectors[1] = lower[1];
        }
        _mm512_store_si512(out, vectors[0]);
        _mm512_store_si512(out + 64, vectors[1]);
      }
    }
  });
}

// ---- E4M3

// 64 dimensions as BF16: pairs of dimensions i and i + 16 of the first 32, then of the others, as
// Isa::load_pairs() takes them.
struct Pairs {
  __m512i at[2];
};

// The dimension of byte i of two vectors that are unpacked into such pairs.
constexpr std::size_t value_dim(std::size_t byte) {
  const std::size_t lane = byte / 8;
  const std::size_t half = byte % 2 * 16 + lane % 2 * 32;
  return half + lane / 4 * 8 + lane / 2 % 2 * 4 + byte % 8 / 2;
}

[[gnu::always_inline]] inline __m512i load_some(const StoredTile& tile, std::size_t key, std::size_t dim) {
  const std::size_t left = tile.head_dim - dim;
  if (left < 64) return _mm512_maskz_loadu_epi8((__mmask64{1} << left) - 1, tile.codes[key] + dim);
  return _mm512_loadu_si512(tile.codes[key] + dim);
}

// E4M3: the magnitudes are numbers of a table of 128.
struct E4m3Table {
  alignas(64) std::array<std::uint8_t, 128> upper{};
  alignas(64) std::array<std::uint8_t, 128> lower{};
  constexpr E4m3Table() {
    for (std::size_t i = 0; i < 128; ++i) {
      const std::uint16_t word = quant::float_to_bf16(quant::e4m3_to_float(static_cast<std::uint8_t>(i)));
      upper[i] = static_cast<std::uint8_t>(word >> 8);
      lower[i] = static_cast<std::uint8_t>(word);
    }
  }
};
constexpr E4m3Table kE4m3;
constexpr std::array kValueDims = make_bytes([](std::size_t i) { return value_dim(i); });

struct E4m3Reader {
  __m512i upper[2] = {_mm512_load_si512(kE4m3.upper.data()), _mm512_load_si512(kE4m3.upper.data() + 64)};
  __m512i lower[2] = {_mm512_load_si512(kE4m3.lower.data()), _mm512_load_si512(kE4m3.lower.data() + 64)};
  __m512i sign = keep(every_byte(0x80));

  [[gnu::always_inline]] Pairs read(const StoredTile& tile, std::size_t key, std::size_t dim) const {
    const __m512i bytes = _mm512_permutexvar_epi8(load_bytes(kValueDims), load_some(tile, key, dim));
    const __m512i magnitude = _mm512_permutex2var_epi8(upper[0], bytes, upper[1]);
    const __m512i high = _mm512_ternarylogic_epi64(magnitude, bytes, sign, kXorAnd);
    const __m512i low = _mm512_permutex2var_epi8(lower[0], bytes, lower[1]);
    return {{_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)}};
  }
};

void read_values(const StoredTile& tile, std::byte* levels) {
  const E4m3Reader reader;
  for (std::size_t key = 0; key < tile.keys; ++key) {
    if (key % kOctet == 0) ask_headers(tile.soon[key / kOctet]);
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 64) {
      ask(tile.soon[key / kOctet], dim / 8 + key % kOctet);
      const Pairs pairs = reader.read(tile, key, dim);
      std::byte* out = levels + (key * tile.value_stride + dim) * 2;
      _mm512_store_si512(out, pairs.at[0]);
      _mm512_store_si512(out + 64, pairs.at[1]);
    }
  }
}

}  // namespace
}  // namespace metrale::kernels::levels
