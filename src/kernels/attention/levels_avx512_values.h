// SPDX-License-Identifier: Apache-2.0
// Levels of values with AVX-512: 64 dimensions of a value at a time. Local to the including source.
#pragma once

#include <type_traits>

#include "kernels/attention/levels_avx512.h"
#include "kernels/attention/levels_body.h"

namespace metrale::kernels::levels {
namespace {

// The levels' upper and lower bytes are looked up in an order in which unpacking them gives pairs of
// dimensions i and i + 16, as Isa::load_pairs() takes them. This is that order: the dimension of byte i.

constexpr std::size_t value_dim(std::size_t byte) {
  const std::size_t lane = byte / 8;
  const std::size_t half = byte % 2 * 16 + lane % 2 * 32;
  return half + lane / 4 * 8 + lane / 2 % 2 * 4 + byte % 8 / 2;
}
constexpr std::size_t value_group(std::size_t byte) {
  return value_dim(byte) / 8;
}

// Word `word(group)` of the codes for each byte's group, as pairs of words in 64-bit lanes.
template <class Word>
constexpr auto make_words(Word&& word) {
  std::array<std::uint32_t, 16> words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<std::uint32_t>(word(value_group(i / 2 * 8 + i % 2)));
  }
  return words;
}
// A control: bit(group, element) of the word that make_words() put there for the byte's group.
template <class Bit>
constexpr auto make_fields(Bit&& bit) {
  return make_bytes([&](std::size_t i) {
    return i % 2 * 32 + 64 + static_cast<std::size_t>(bit(value_group(i), value_dim(i) % 8));
  });
}

struct ValueFields {
  std::array<std::uint32_t, 16> words;
  std::array<std::uint8_t, 64> bits;

  [[nodiscard]] __m512i take(__m512i codes) const {
    const __m512i lanes = _mm512_permutexvar_epi32(_mm512_loadu_si512(words.data()), codes);
    return _mm512_multishift_epi64_epi8(_mm512_loadu_si512(bits.data()), lanes);
  }
};

constexpr ValueFields kTurbo4Fields{make_words([](std::size_t g) { return g; }),
                                    make_fields([](std::size_t, std::size_t e) { return 4 * e; })};
constexpr std::array kTurbo4Signs =
    make_fields([](std::size_t, std::size_t e) { return (e < 4 ? 8 * e + 3 : 8 * (e - 4) + 7) + 64 - 7; });
constexpr ValueFields kTurbo2Fields{
    make_words([](std::size_t g) { return g / 2; }),
    make_fields([](std::size_t g, std::size_t e) { return 4 * e + g % 2 * 2; })};
// turbo3: the first and the second token of two that share words.
constexpr ValueFields kFirstFields{make_words([](std::size_t g) { return g / 2 * 3 + g % 2; }),
                                   make_fields([](std::size_t, std::size_t e) { return 4 * e; })};
constexpr ValueFields kSecondFields[3] = {
    {make_words([](std::size_t g) { return g / 2 * 3 + (g % 2 == 0 ? 2 : 0); }),
     make_fields([](std::size_t g, std::size_t e) { return 4 * e + (g % 2 == 0 ? 0 : 3); })},
    {make_words([](std::size_t g) { return g / 2 * 3 + 1; }),
     make_fields([](std::size_t, std::size_t e) { return 4 * e + 2; })},
    {make_words([](std::size_t g) { return g / 2 * 3 + 2; }),
     make_fields([](std::size_t, std::size_t e) { return 4 * e + 1; })}};
// Rows of the first and of the second 64 dimensions of a record, in bits 3 to 5.
constexpr std::array<std::uint8_t, 64> kRowFields[2] = {
    make_bytes([](std::size_t i) { return 3 * value_group(i); }),
    make_bytes([](std::size_t i) { return 3 * value_group(i) + 24; })};
// What the fields of the second token give: whole codes of even groups, a bit each of odd ones.
constexpr std::array<std::uint8_t, 64> kSecondMask[3] = {
    make_bytes([](std::size_t i) { return value_group(i) % 2 == 0 ? 7 : 1; }),
    make_bytes([](std::size_t i) { return value_group(i) % 2 == 0 ? 0 : 2; }),
    make_bytes([](std::size_t i) { return value_group(i) % 2 == 0 ? 0 : 4; })};

__m512i load_bytes(const std::array<std::uint8_t, 64>& bytes) {
  return _mm512_loadu_si512(bytes.data());
}

// 64 dimensions as BF16: pairs of dimensions i and i + 16 of the first 32, then of the others.
struct Pairs {
  __m512i at[2];
};

[[gnu::always_inline]] inline Pairs join_bytes(__m512i upper, __m512i lower) {
  return {{_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)}};
}

// What a loop over values keeps at hand.
template <KvFormat kFormat>
struct ValueReader {
  static constexpr Table kUpper = upper_table(kFormat);
  static constexpr Table kLower = lower_table(kFormat);
  static constexpr std::size_t kBytes =  // of 64 dimensions
      kFormat == KvFormat::kTurbo4   ? 32
      : kFormat == KvFormat::kTurbo3 ? 48
                                     : 16;

  __m512i uppers = load_table(kUpper);
  __m512i lowers = load_table(kLower);
  __m512i seven = keep(every_byte(7));
  __m512i sign = keep(every_byte(0x80));

  [[gnu::always_inline]] static __m512i load(const StoredTile& tile, std::size_t key, std::size_t dim) {
    const std::byte* from = tile.codes[key] + dim / 64 * kBytes;
    const std::size_t left = tile.head_dim - dim;
    if (left < 64) return _mm512_maskz_loadu_epi8((__mmask64{1} << (kBytes * left / 64)) - 1, from);
    if constexpr (kFormat == KvFormat::kTurbo4) {
      return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    } else if constexpr (kFormat == KvFormat::kTurbo2) {
      return _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    } else {
      return _mm512_maskz_loadu_epi32(0xFFF, from);
    }
  }

  [[gnu::always_inline]] static __m512i codes(__m512i words, bool second) {
    if constexpr (kFormat == KvFormat::kTurbo4) return kTurbo4Fields.take(words);
    if constexpr (kFormat == KvFormat::kTurbo2) return kTurbo2Fields.take(words);
    if (!second) return kFirstFields.take(words);
    const __m512i whole = _mm512_and_si512(kSecondFields[0].take(words), load_bytes(kSecondMask[0]));
    const __m512i two =
        _mm512_ternarylogic_epi64(whole, kSecondFields[1].take(words), load_bytes(kSecondMask[1]), kOrAnd);
    return _mm512_ternarylogic_epi64(two, kSecondFields[2].take(words), load_bytes(kSecondMask[2]), kOrAnd);
  }

  [[gnu::always_inline]] Pairs read(const StoredTile& tile, std::size_t key, std::size_t dim) const {
    const __m512i words = load(tile, key, dim);
    const __m512i rows = _mm512_set1_epi64(load_as<std::int64_t>(&tile.rows[dim / 128][key]));
    const __m512i row = _mm512_multishift_epi64_epi8(load_bytes(kRowFields[dim / 64 % 2]), rows);
    const __m512i index = _mm512_ternarylogic_epi64(codes(words, key % 8 >= 4), row, seven, kSelect);
    __m512i upper = _mm512_permutexvar_epi8(index, uppers);
    if constexpr (kFormat == KvFormat::kTurbo4) {
      const __m512i lanes = _mm512_permutexvar_epi32(_mm512_loadu_si512(kTurbo4Fields.words.data()), words);
      const __m512i signs = _mm512_multishift_epi64_epi8(load_bytes(kTurbo4Signs), lanes);
      upper = _mm512_ternarylogic_epi64(upper, signs, sign, kXorAnd);
    }
    return join_bytes(upper, _mm512_permutexvar_epi8(index, lowers));
  }
};

[[gnu::always_inline]] inline __m512i load_some(const StoredTile& tile, std::size_t key, std::size_t dim) {
  const std::size_t left = tile.head_dim - dim;
  if (left < 64) return _mm512_maskz_loadu_epi8((__mmask64{1} << left) - 1, tile.codes[key] + dim);
  return _mm512_loadu_si512(tile.codes[key] + dim);
}

// BF16 holds every integer of a byte: they are the upper halves of FP32 numbers.
template <>
struct ValueReader<KvFormat::kTurbo8i> {
  [[gnu::always_inline]] static __m512i widen(__m128i bytes) {
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  }
  [[gnu::always_inline]] static __m512i pair(__m256i bytes) {
    return _mm512_or_si512(_mm512_srli_epi32(widen(_mm256_castsi256_si128(bytes)), 16),
                           widen(_mm256_extracti128_si256(bytes, 1)));
  }
  [[gnu::always_inline]] Pairs read(const StoredTile& tile, std::size_t key, std::size_t dim) const {
    const __m512i bytes = load_some(tile, key, dim);
    return {{pair(_mm512_castsi512_si256(bytes)), pair(_mm512_extracti64x4_epi64(bytes, 1))}};
  }
};

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

// All formats of E4M3 numbers.
template <>
struct ValueReader<KvFormat::kFp8> {
  __m512i upper[2] = {_mm512_load_si512(kE4m3.upper.data()), _mm512_load_si512(kE4m3.upper.data() + 64)};
  __m512i lower[2] = {_mm512_load_si512(kE4m3.lower.data()), _mm512_load_si512(kE4m3.lower.data() + 64)};
  __m512i sign = keep(every_byte(0x80));

  [[gnu::always_inline]] Pairs read(const StoredTile& tile, std::size_t key, std::size_t dim) const {
    const __m512i bytes = _mm512_permutexvar_epi8(load_bytes(kValueDims), load_some(tile, key, dim));
    const __m512i magnitude = _mm512_permutex2var_epi8(upper[0], bytes, upper[1]);
    return join_bytes(_mm512_ternarylogic_epi64(magnitude, bytes, sign, kXorAnd),
                      _mm512_permutex2var_epi8(lower[0], bytes, lower[1]));
  }
};

// Calls body(std::integral_constant<KvFormat, ...>) for a format whose values have levels; all of E4M3 is
// one.
template <class Body>
void with_value_format(KvFormat format, const Body& body) {
  switch (format) {
    case KvFormat::kTurbo4:
      return body(std::integral_constant<KvFormat, KvFormat::kTurbo4>());
    case KvFormat::kTurbo3:
      return body(std::integral_constant<KvFormat, KvFormat::kTurbo3>());
    case KvFormat::kTurbo2:
      return body(std::integral_constant<KvFormat, KvFormat::kTurbo2>());
    case KvFormat::kTurbo8i:
      return body(std::integral_constant<KvFormat, KvFormat::kTurbo8i>());
    default:
      return body(std::integral_constant<KvFormat, KvFormat::kFp8>());
  }
}

void read_values(const StoredTile& tile, std::byte* levels) {
  with_value_format(tile.format, [&](auto format) {
    const ValueReader<format()> reader;
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
  });
}

}  // namespace
}  // namespace metrale::kernels::levels
