// SPDX-License-Identifier: Apache-2.0
// Levels with AVX-512, VBMI and VNNI. A control of multishift says for each byte of the result from which bit
// of its 64-bit lane on it is taken; what it takes beyond the bits of a code is masked off or not looked at.
#include <cstring>
#include <immintrin.h>

#include "kernels/attention/levels.h"
#include "kernels/attention/levels_body.h"
#include "kernels/attention/levels_tables.h"

namespace metrale::kernels::levels {
namespace {

constexpr std::uint8_t kUnsigned = 0x80;  // what makes a signed byte an unsigned one, 128 larger
constexpr std::size_t kMostRowsAtOnce = 6;

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

// ---- keys: eight keys at a time, a 64-bit lane for each

// Bytes [offset, offset + 64) of eight keys: column i has the i-th 64 bits of each.
struct Columns {
  __m512i at[8];
};

Columns load_columns(const std::byte* const* codes, std::size_t offset, std::size_t bytes) {
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

constexpr std::uint64_t kEveryByte = 0x0101010101010101;

// Control of eight fields `distance` bits apart from bit `first` on, in each lane.
__m512i fields(std::size_t first, std::size_t distance) {
  return _mm512_set1_epi64(
      static_cast<std::int64_t>(first * kEveryByte + distance * std::uint64_t{0x0706050403020100}));
}

// Signs of a group of turbo4 in bit 7 of its bytes, from the word at bit `word` of the lane: bits 3, 11, 19,
// 27, 7, 15, 23, 31, each less 7 and modulo 64.
__m512i sign_fields(std::size_t word) {
  return _mm512_set1_epi64(static_cast<std::int64_t>(word * kEveryByte + 0x58504840544C443C));
}

template <KvFormat kFormat>
__m512i key_codes(const Columns& columns, std::size_t group, std::size_t groups) {
  if constexpr (kFormat == KvFormat::kTurbo4) {
    return _mm512_multishift_epi64_epi8(fields(group % 2 * 32, 4), columns.at[group / 2]);
  } else if constexpr (kFormat == KvFormat::kTurbo2) {
    return _mm512_multishift_epi64_epi8(fields(group / 2 % 2 * 32 + group % 2 * 2, 4), columns.at[group / 4]);
  } else {
    const std::size_t word = group / 4 * 3;  // the first of four groups' three
    const auto field = [&](std::size_t w, std::size_t first, std::size_t distance) {
      return _mm512_multishift_epi64_epi8(fields(w % 2 * 32 + first, distance), columns.at[w / 2]);
    };
    if (groups == 10 && group == 9) {  // what 16 dimensions leave
      return _mm512_ternarylogic_epi64(field(word, 1, 4), field(word + 1, 0, 2), every_byte(4), kSelect);
    }
    if (group % 4 != 3) return field(word + group % 4, 0, 4);
    const __m512i two =
        _mm512_ternarylogic_epi64(field(word, 3, 4), field(word + 1, 2, 4), every_byte(1), kSelect);
    return _mm512_ternarylogic_epi64(field(word + 2, 1, 4), two, every_byte(4), kSelect);
  }
}

// The levels of one octet of keys of one record of `groups` groups.
template <KvFormat kFormat>
void read_key_record(const StoredTile& tile, std::size_t octet, std::size_t record, std::size_t groups,
                     std::byte* out) {
  static constexpr Table kTable = key_table(kFormat, kUnsigned);
  constexpr std::size_t kBits = kFormat == KvFormat::kTurbo4 ? 4 : kFormat == KvFormat::kTurbo3 ? 3 : 2;
  const __m512i table = load_table(kTable);
  const Columns columns = load_columns(tile.codes + octet * kOctet, record * 16 * kBits, groups * kBits);
  const __m512i rows = _mm512_loadu_si512(&tile.rows[record][octet * kOctet]);
#pragma GCC unroll 16
  for (std::size_t group = 0; group < 16; ++group) {
    if (group >= groups) break;
    const __m512i codes = key_codes<kFormat>(columns, group, groups);
    const __m512i row = _mm512_multishift_epi64_epi8(every_byte(static_cast<int>(3 * group)), rows);
    const __m512i index = _mm512_ternarylogic_epi64(codes, row, every_byte(7), kSelect);
    __m512i level = _mm512_permutexvar_epi8(index, table);
    if constexpr (kFormat == KvFormat::kTurbo4) {
      const __m512i signs = _mm512_multishift_epi64_epi8(sign_fields(group % 2 * 32), columns.at[group / 2]);
      level = _mm512_mask_sub_epi8(level, _mm512_movepi8_mask(signs), every_byte(-1), level);
    }
    _mm512_store_si512(out + group * 64, level);
  }
}

void read_key_integers(const StoredTile& tile, std::size_t octet, std::byte* out) {
  for (std::size_t at = 0; at < tile.head_dim; at += 64, out += 8 * 64) {
    const std::size_t bytes = tile.head_dim - at < 64 ? tile.head_dim - at : 64;
    const Columns columns = load_columns(tile.codes + octet * kOctet, at, bytes);
#pragma GCC unroll 8
    for (std::size_t group = 0; group < 8; ++group) {
      if (group * 8 >= bytes) break;
      _mm512_store_si512(out + group * 64, _mm512_xor_si512(columns.at[group], every_byte(kUnsigned)));
    }
  }
}

template <KvFormat kFormat>
void read_turbo_keys(const StoredTile& tile, std::byte* levels) {
  for (std::size_t octet = 0; octet < tile.keys / kOctet; ++octet) {
    ask(tile.soon[octet]);
    std::byte* out = levels + octet * tile.key_groups * 64;
    for (std::size_t record = 0; record * 16 < tile.head_dim / 8; ++record) {
      const std::size_t left = tile.head_dim / 8 - record * 16;
      read_key_record<kFormat>(tile, octet, record, left < 16 ? left : 16, out + record * 16 * 64);
    }
  }
}

void read_keys(const StoredTile& tile, std::byte* levels) {
  switch (tile.format) {
    case KvFormat::kTurbo4:
      return read_turbo_keys<KvFormat::kTurbo4>(tile, levels);
    case KvFormat::kTurbo3:
      return read_turbo_keys<KvFormat::kTurbo3>(tile, levels);
    case KvFormat::kTurbo2:
      return read_turbo_keys<KvFormat::kTurbo2>(tile, levels);
    default:
      for (std::size_t octet = 0; octet < tile.keys / kOctet; ++octet) {
        ask(tile.soon[octet]);
        read_key_integers(tile, octet, levels + octet * tile.key_groups * 64);
      }
  }
}

// ---- values: 64 dimensions of a value at a time
//
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
// Of the second token, what each of its fields gives: whole codes of even groups, a bit each of odd ones.
constexpr std::array kSecondMask = make_bytes([](std::size_t i) { return value_group(i) % 2 == 0 ? 7 : 1; });
constexpr std::array kOddGroups = make_bytes([](std::size_t i) { return value_group(i) % 2 == 0 ? 0 : 6; });

__m512i load_bytes(const std::array<std::uint8_t, 64>& bytes) {
  return _mm512_loadu_si512(bytes.data());
}

template <KvFormat kFormat>
__m512i value_codes(__m512i words, bool second) {
  if constexpr (kFormat == KvFormat::kTurbo4) return kTurbo4Fields.take(words);
  if constexpr (kFormat == KvFormat::kTurbo2) return kTurbo2Fields.take(words);
  if (!second) return kFirstFields.take(words);
  const __m512i odd = load_bytes(kOddGroups);
  __m512i codes = _mm512_and_si512(kSecondFields[0].take(words), load_bytes(kSecondMask));
  codes = _mm512_ternarylogic_epi64(codes, kSecondFields[1].take(words), _mm512_and_si512(odd, every_byte(2)),
                                    kOrAnd);
  return _mm512_ternarylogic_epi64(codes, kSecondFields[2].take(words), _mm512_and_si512(odd, every_byte(4)),
                                   kOrAnd);
}

void store_words(__m512i upper, __m512i lower, std::byte* out) {
  _mm512_store_si512(out, _mm512_unpacklo_epi8(lower, upper));
  _mm512_store_si512(out + 64, _mm512_unpackhi_epi8(lower, upper));
}

template <KvFormat kFormat>
void read_turbo_values(const StoredTile& tile, std::byte* levels) {
  static constexpr Table kUpper = upper_table(kFormat);
  static constexpr Table kLower = lower_table(kFormat);
  const __m512i upper_table = load_table(kUpper);
  const __m512i lower_table = load_table(kLower);
  constexpr std::size_t kChunk = kFormat == KvFormat::kTurbo4 ? 32 : kFormat == KvFormat::kTurbo3 ? 48 : 16;
  for (std::size_t key = 0; key < tile.keys; ++key) {
    if (key % kOctet == 0) ask(tile.soon[key / kOctet]);
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 64) {
      const std::size_t left = tile.head_dim - dim;
      const std::size_t bytes = left < 64 ? kChunk * left / 64 : kChunk;
      const __m512i words =
          _mm512_maskz_loadu_epi8((__mmask64{1} << bytes) - 1, tile.codes[key] + dim / 64 * kChunk);
      const __m512i codes = value_codes<kFormat>(words, key % 8 >= 4);
      const __m512i rows = _mm512_set1_epi64(load_as<std::int64_t>(&tile.rows[dim / 128][key]));
      const __m512i row = _mm512_multishift_epi64_epi8(load_bytes(kRowFields[dim / 64 % 2]), rows);
      const __m512i index = _mm512_ternarylogic_epi64(codes, row, every_byte(7), kSelect);
      __m512i upper = _mm512_permutexvar_epi8(index, upper_table);
      if constexpr (kFormat == KvFormat::kTurbo4) {
        const __m512i lanes = _mm512_permutexvar_epi32(_mm512_loadu_si512(kTurbo4Fields.words.data()), words);
        const __m512i signs = _mm512_multishift_epi64_epi8(load_bytes(kTurbo4Signs), lanes);
        upper = _mm512_ternarylogic_epi64(upper, signs, every_byte(0x80), kXorAnd);
      }
      store_words(upper, _mm512_permutexvar_epi8(index, lower_table),
                  levels + (key * tile.value_stride + dim) * 2);
    }
  }
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

void read_e4m3_values(const StoredTile& tile, std::byte* levels) {
  const __m512i upper0 = _mm512_load_si512(kE4m3.upper.data());
  const __m512i upper1 = _mm512_load_si512(kE4m3.upper.data() + 64);
  const __m512i lower0 = _mm512_load_si512(kE4m3.lower.data());
  const __m512i lower1 = _mm512_load_si512(kE4m3.lower.data() + 64);
  for (std::size_t key = 0; key < tile.keys; ++key) {
    if (key % kOctet == 0) ask(tile.soon[key / kOctet]);
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 64) {
      const std::size_t left = tile.head_dim - dim;
      const __mmask64 mask = left < 64 ? (__mmask64{1} << left) - 1 : ~__mmask64{0};
      const __m512i stored = _mm512_maskz_loadu_epi8(mask, tile.codes[key] + dim);
      const __m512i bytes = _mm512_permutexvar_epi8(load_bytes(kValueDims), stored);
      const __m512i magnitude = _mm512_permutex2var_epi8(upper0, bytes, upper1);
      store_words(_mm512_ternarylogic_epi64(magnitude, bytes, every_byte(0x80), kXorAnd),
                  _mm512_permutex2var_epi8(lower0, bytes, lower1),
                  levels + (key * tile.value_stride + dim) * 2);
    }
  }
}

// BF16 holds every integer of a byte: the upper halves of FP32 numbers.
void read_integer_values(const StoredTile& tile, std::byte* levels) {
  const auto widen = [](__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); };
  for (std::size_t key = 0; key < tile.keys; ++key) {
    if (key % kOctet == 0) ask(tile.soon[key / kOctet]);
    for (std::size_t dim = 0; dim < tile.head_dim; dim += 32) {
      const __mmask32 mask = tile.head_dim - dim < 32 ? 0xFFFFU : ~__mmask32{0};
      const __m256i bytes = _mm256_maskz_loadu_epi8(mask, tile.codes[key] + dim);
      const __m512i first = _mm512_castps_si512(widen(_mm256_castsi256_si128(bytes)));
      const __m512i second = _mm512_castps_si512(widen(_mm256_extracti128_si256(bytes, 1)));
      _mm512_store_si512(levels + (key * tile.value_stride + dim) * 2,
                         _mm512_or_si512(_mm512_srli_epi32(first, 16), second));
    }
  }
}

void read_values(const StoredTile& tile, std::byte* levels) {
  switch (tile.format) {
    case KvFormat::kTurbo4:
      return read_turbo_values<KvFormat::kTurbo4>(tile, levels);
    case KvFormat::kTurbo3:
      return read_turbo_values<KvFormat::kTurbo3>(tile, levels);
    case KvFormat::kTurbo2:
      return read_turbo_values<KvFormat::kTurbo2>(tile, levels);
    case KvFormat::kTurbo8i:
      return read_integer_values(tile, levels);
    default:
      return read_e4m3_values(tile, levels);
  }
}

// ---- products

// A block of rows' queries as pairs of signed bytes, q = 256 upper + lower, and their sums.
struct QueryBytes {
  alignas(64) std::int8_t upper[kMostRowsAtOnce][kMostDims];
  alignas(64) std::int8_t lower[kMostRowsAtOnce][kMostDims];
  std::int32_t sums[kMostRowsAtOnce][kMostRecords];

  QueryBytes(const Scores& t, std::size_t row, std::size_t rows) {
    for (std::size_t i = 0; i < rows; ++i) {
      const std::int16_t* q = t.q + (row + i) * t.q_stride;
      for (std::size_t record = 0; record * 128 < t.head_dim; ++record) {
        __m512i sum = _mm512_setzero_si512();
        for (std::size_t at = record * 128; at < t.head_dim && at < record * 128 + 128; at += 32) {
          const __mmask32 mask = t.head_dim - at < 32 ? 0xFFFFU : ~__mmask32{0};
          const __m512i words = _mm512_maskz_loadu_epi16(mask, q + at);
          const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(words, _mm512_set1_epi16(128)), 8);
          sum = _mm512_add_epi32(sum, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
          _mm256_store_si256(reinterpret_cast<__m256i*>(upper[i] + at), _mm512_cvtepi16_epi8(high));
          _mm256_store_si256(reinterpret_cast<__m256i*>(lower[i] + at), _mm512_cvtepi16_epi8(words));
        }
        sums[i][record] = _mm512_reduce_add_epi32(sum);
      }
    }
  }
};

struct Avx512 {
  using Vec = __m512;
  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kMostRows = kMostRowsAtOnce;
  // Units of a pass over the values: sums fill the registers.
  static constexpr std::size_t units(std::size_t rows) { return rows <= 2 ? 4 : 2; }

  static Vec load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vec v) { _mm512_storeu_ps(to, v); }
  static Vec broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static __m512i load_pairs(const std::byte* from) { return _mm512_load_si512(from); }
  static Vec first(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static Vec second(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  }

  // The sums of one record of W octets' keys against R rows, times the steps, onto `dots`.
  template <std::size_t R, std::size_t W>
  static void add_record(const Scores& t, const QueryBytes& q, std::size_t octet, std::size_t record,
                         __m256 (&dots)[R][W]) {
    __m512i upper[R][W];
    __m512i lower[R][W];
#pragma GCC unroll 12
    for (std::size_t i = 0; i < R * W; ++i) {
      upper[i / W][i % W] = _mm512_setzero_si512();
      lower[i / W][i % W] = _mm512_setzero_si512();
    }
    const std::size_t stride = t.key_groups * 64;
    const std::byte* levels = t.levels + octet * stride + record * 16 * 64;
    const std::size_t end = t.head_dim < record * 128 + 128 ? t.head_dim : record * 128 + 128;
    for (std::size_t dim = record * 128; dim < end; dim += 8, levels += 64) {
      __m512i level[W];
#pragma GCC unroll 2
      for (std::size_t k = 0; k < W; ++k) level[k] = _mm512_load_si512(levels + k * stride);
#pragma GCC unroll 8
      for (std::size_t i = 0; i < R; ++i) {
        const __m512i high = _mm512_set1_epi64(load_as<std::int64_t>(q.upper[i] + dim));
        const __m512i low = _mm512_set1_epi64(load_as<std::int64_t>(q.lower[i] + dim));
#pragma GCC unroll 2
        for (std::size_t k = 0; k < W; ++k) {
          upper[i][k] = _mm512_dpbusd_epi32(upper[i][k], level[k], high);
          lower[i][k] = _mm512_dpbusd_epi32(lower[i][k], level[k], low);
        }
      }
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < R; ++i) {
      const int sum = q.sums[i][record];
      const __m256i offset = _mm256_set1_epi32(t.halves ? -255 * sum : -128 * sum);
#pragma GCC unroll 2
      for (std::size_t k = 0; k < W; ++k) {
        const __m512i both = _mm512_add_epi32(lower[i][k], _mm512_slli_epi32(upper[i][k], 8));
        __m256i dot = _mm512_cvtepi64_epi32(_mm512_add_epi32(both, _mm512_srli_epi64(both, 32)));
        if (t.halves) dot = _mm256_add_epi32(dot, dot);
        const __m256 exact = _mm256_cvtepi32_ps(_mm256_add_epi32(dot, offset));
        const __m256 steps = _mm256_loadu_ps(t.steps + record * kKeyTile + (octet + k) * kOctet);
        dots[i][k] = _mm256_fmadd_ps(exact, steps, dots[i][k]);
      }
    }
  }

  template <std::size_t R, std::size_t W>
  static void score_octets(const Scores& t, const QueryBytes& q, std::size_t row, std::size_t octet) {
    __m256 dots[R][W];
#pragma GCC unroll 12
    for (std::size_t i = 0; i < R * W; ++i) dots[i / W][i % W] = _mm256_setzero_ps();
    for (std::size_t record = 0; record * 128 < t.head_dim; ++record) {
      add_record<R, W>(t, q, octet, record, dots);
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < R; ++i) {
      const __m256 factor = _mm256_set1_ps(t.factors[row + i]);
#pragma GCC unroll 2
      for (std::size_t k = 0; k < W; ++k) {
        _mm256_storeu_ps(t.scores + (row + i) * t.scores_stride + (octet + k) * kOctet,
                         _mm256_mul_ps(dots[i][k], factor));
      }
    }
  }

  template <std::size_t R>
  static void score_rows(const Scores& t, std::size_t row) {
    const QueryBytes q(t, row, R);
    std::size_t octet = 0;
    for (; octet + 2 <= t.keys / kOctet; octet += 2) score_octets<R, 2>(t, q, row, octet);
    if (octet < t.keys / kOctet) score_octets<R, 1>(t, q, row, octet);
  }
};

}  // namespace

const KernelSet& avx512_kernels() {
  static constexpr KernelSet kSet{.read_keys = read_keys,
                                  .read_values = read_values,
                                  .score = Body<Avx512>::score,
                                  .add = Body<Avx512>::add};
  return kSet;
}

}  // namespace metrale::kernels::levels
