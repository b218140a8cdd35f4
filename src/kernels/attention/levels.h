// SPDX-License-Identifier: Apache-2.0
// Keys and values that are levels times a step for each record of a vector. Attention multiplies with the
// levels and applies the steps to sums, or to weights. Most levels are integers, or integers times a power of
// two: their products with queries, or weights, rounded to 16 bits add up exactly, so in any order. Values in
// E4M3 have too many bits for that and are taken as BF16, which holds them. docs/kernels.md has the
// arithmetic.
//
// The kernels have one set for AVX2 and one for AVX-512 with VBMI, VNNI and BITALG; both give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include <metrale/quant/kv_format.h>
#include <metrale/quant/turbo_record.h>

#include "kernels/attention/head_side.h"

namespace metrale::kernels::levels {

inline constexpr std::size_t kOctet = 8;        // keys, and dimensions, that lie beside each other
inline constexpr std::size_t kMostRecords = 4;  // of a vector
inline constexpr std::size_t kMostDims = 512;
static_assert(kMostRecords * quant::kKvRecordDims == kMostDims && kMostDims == quant::kKvMaxHeadDim);

// Queries are rounded to multiples of a row's largest magnitude / kQuerySteps: two signed bytes hold one.
inline constexpr float kQuerySteps = 32512.0F;
// A row that is smaller counts as zeros.
inline constexpr float kSmallestQuery = 0x1p-96F;

// An octet of keys that is needed soon, asked for in head_dim / 8 parts. Addresses are valid even where there
// is nothing to ask for.
struct Soon {
  const std::byte* codes;
  std::size_t part_bytes;
  const std::byte* headers;
  std::size_t header_bytes;
};

// A tile of keys or values as it is stored.
struct StoredTile {
  quant::KvFormat format;
  std::size_t head_dim;
  std::size_t key_groups;                      // padded_groups(head_dim)
  std::size_t value_stride;                    // value_stride(head_dim)
  std::size_t keys;                            // a multiple of kOctet; those that do not exist mean nothing
  const std::byte* codes[kKeyTile];            // of each key; turbo3 values: of the words that it shares
  std::uint64_t rows[kMostRecords][kKeyTile];  // turbo: row of group g in bits 3 + 3g to 5 + 3g
  float steps[kMostRecords][kKeyTile];
  Soon soon[kKeyTile / kOctet];  // what to ask for while an octet is worked on
};

// Bytes of a tile's levels: keys int8 [octet][group of 8 dims][key][dim], values BF16 [key][value_stride] or
// int16 by pairs of keys, [pair][value_stride][2] in an order of dimensions that is the kernels' own.
[[nodiscard]] constexpr std::size_t padded_groups(std::size_t head_dim) {
  return (head_dim + 31) / 32 * 4;
}
[[nodiscard]] constexpr std::size_t value_stride(std::size_t head_dim) {
  return (head_dim + 63) / 64 * 64;
}
[[nodiscard]] constexpr std::size_t tile_bytes(std::size_t head_dim) {
  return kKeyTile * value_stride(head_dim) * 2;
}

// Rows of queries in 16 bits.
struct Queries {
  std::size_t stride = 0;         // from row to row, at least head_dim
  std::int16_t* whole = nullptr;  // [row][stride]
  // [row][stride]: whole = 256 upper + lower; for turbo4, elements 4 to 7 and 8 to 11 of 16 change places.
  std::int8_t* upper = nullptr;
  std::int8_t* lower = nullptr;
  std::int32_t* sums = nullptr;  // [row][kMostRecords], of a record's elements
  float* factors = nullptr;      // [row]: what a sum of products is multiplied by
};

struct Scores {
  Queries queries;
  std::size_t head_dim;
  std::size_t keys;
  const std::byte* levels;  // of read_keys()
  std::size_t key_groups;
  const float* steps;  // [record][kKeyTile]
  bool halves;         // a level is one half more than the integer
  float* scores;       // [row][scores_stride]
  std::size_t scores_stride;
};

// Weights of a tile's keys, times the steps of a record, in 16 bits. Those that a row may not see are zero.
struct RoundedWeights {
  std::int16_t* whole = nullptr;  // [row][kKeyTile], by pairs: keys 0, 4, 1, 5, 2, 6, 3, 7 of each octet
  float* factors = nullptr;       // [row]: what a sum of products is multiplied by
};

struct WeightedIntegers {
  const std::byte* levels;  // of read_integers()
  std::size_t value_stride;
  std::size_t keys;  // of the tile
  RoundedWeights weights;
  float* values;  // [row][stride], at the record's first dimension
  std::size_t stride;
  std::size_t first;  // dimension
  std::size_t dims;   // of the record
};

struct Weighted {
  const std::byte* levels;  // of read_values()
  std::size_t value_stride;
  const float* weights;  // [row][kKeyTile]: the record's steps included
  float* values;         // [row][stride], at the record's first dimension
  std::size_t stride;
  std::size_t first;  // dimension
  std::size_t dims;   // of the record
};

// What is said of rows holds for rows [row, row + rows).
struct KernelSet {
  // So many rows are better served by what reads a tile on the way; others share one that is read first.
  std::size_t few_rows;
  void (*read_keys)(const StoredTile&, std::byte* levels);
  void (*score)(const Scores&, std::size_t row, std::size_t rows);
  void (*score_few)(const StoredTile&, const Scores&, std::size_t row, std::size_t rows);
  void (*read_integers)(const StoredTile&, std::byte* levels);
  void (*add_integers)(const WeightedIntegers&, std::size_t row, std::size_t rows);
  void (*add_integers_few)(const StoredTile&, const WeightedIntegers&, std::size_t row, std::size_t rows);
  void (*read_values)(const StoredTile&, std::byte* levels);
  // The weighted levels of keys [begin, end), at most 8 rows.
  void (*add)(const Weighted&, std::size_t row, std::size_t rows, std::size_t begin, std::size_t end);
  void (*add_few)(const StoredTile&, const Weighted&, std::size_t row, std::size_t rows, std::size_t begin,
                  std::size_t end);
};

[[nodiscard]] const KernelSet& avx2_kernels();
[[nodiscard]] const KernelSet& avx512_kernels();
// `wide`: AVX-512 may be used.
[[nodiscard]] const KernelSet& kernels(bool wide);
// True where the processor has what avx512_kernels() needs.
[[nodiscard]] bool has_avx512_kernels();

[[nodiscard]] constexpr bool is_turbo_rows(quant::KvFormat format) {
  return quant::kv_format_info(format).header == quant::KvHeader::kTurboRows;
}
// The keys' levels are one half more than their integers.
[[nodiscard]] constexpr bool has_half_levels(quant::KvFormat format) {
  return format == quant::KvFormat::kTurbo4;
}
// Whether attention takes the format's keys, or values, by their levels.
[[nodiscard]] constexpr bool takes_keys(quant::KvFormat format) {
  return is_turbo_rows(format) || format == quant::KvFormat::kTurbo8i;
}
[[nodiscard]] constexpr bool takes_values(quant::KvFormat format, std::size_t head_dim) {
  return is_turbo_rows(format) || quant::kv_format_info(format).header == quant::KvHeader::kRecordScale ||
         (format == quant::KvFormat::kFp8 && head_dim % 16 == 0);
}

// Of them, values whose levels are integers times a unit.
[[nodiscard]] constexpr bool has_integer_values(quant::KvFormat format) {
  return takes_keys(format);
}
// The unit: a power of two.
[[nodiscard]] constexpr float value_unit(quant::KvFormat format) {
  switch (format) {
    case quant::KvFormat::kTurbo4:
    case quant::KvFormat::kTurbo2:
      return 0x1p-6F;
    case quant::KvFormat::kTurbo3:
      return 0x1p-8F;
    default:
      return 1.0F;
  }
}
[[nodiscard]] constexpr std::int32_t value_integer(quant::KvFormat format, std::size_t row,
                                                   std::size_t entry) {
  const float level = quant::turbo_level(format, quant::KvSide::kValue, static_cast<std::uint32_t>(row),
                                         static_cast<std::uint32_t>(entry));
  return static_cast<std::int32_t>(level / value_unit(format));
}
// The largest of the integers' magnitudes.
[[nodiscard]] constexpr std::int32_t most_value(quant::KvFormat format) {
  if (!is_turbo_rows(format)) return 128;
  std::int32_t most = 0;
  for (std::size_t i = 0; i < std::size_t{quant::kTurboTableRows} * quant::kTurboMaxEntries; ++i) {
    const std::int32_t integer =
        value_integer(format, i / quant::kTurboMaxEntries, i % quant::turbo_entries(format));
    const std::int32_t size = integer < 0 ? -integer : integer;
    most = size > most ? size : most;
  }
  return most;
}
namespace detail {
constexpr std::int32_t most_weight(quant::KvFormat format) {
  const std::int32_t most = 0x7FFFFFFF / static_cast<std::int32_t>(kKeyTile) / most_value(format);
  return most < 0x7FFF ? most : 0x7FFF;
}
inline constexpr std::int32_t kMostWeights[4] = {
    most_weight(quant::KvFormat::kTurbo4), most_weight(quant::KvFormat::kTurbo3),
    most_weight(quant::KvFormat::kTurbo2), most_weight(quant::KvFormat::kTurbo8i)};
}  // namespace detail

// Weights are rounded to multiples of a row's largest in the tile / weight_steps(): 32 bits hold the sum of
// a tile's products.
[[nodiscard]] constexpr std::int32_t weight_steps(quant::KvFormat format) {
  switch (format) {
    case quant::KvFormat::kTurbo4:
      return detail::kMostWeights[0];
    case quant::KvFormat::kTurbo3:
      return detail::kMostWeights[1];
    case quant::KvFormat::kTurbo2:
      return detail::kMostWeights[2];
    default:
      return detail::kMostWeights[3];
  }
}
// A row whose weights are all smaller counts as zeros.
inline constexpr float kSmallestWeight = 0x1p-110F;

// The tile at `position`, of which `count` tokens exist.
void find_tile(const HeadSide& side, quant::KvSide which, std::size_t head_dim, std::uint32_t position,
               std::uint32_t count, StoredTile& tile);

}  // namespace metrale::kernels::levels
