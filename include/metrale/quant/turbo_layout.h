// SPDX-License-Identifier: Apache-2.0
// Where the bits of the turbo formats lie. A vector is cut into records of 128 dimensions (what is left, 64,
// 80 or 96, is a record too); a record has a step and, for each group of eight dimensions, the row of the
// level table that the group's codes index. Codes of all records come first, in orders that tensor cores take
// as they lie; docs/formats/turbo.md has them bit by bit. Plain C++20, usable
// on host and device.
#pragma once

#include <cstdint>

#include <metrale/quant/kv_format.h>

namespace metrale::quant {

inline constexpr std::uint32_t kTurboGroup = 8;  // dimensions that share a row

// The step lies in the lowest bits of the record's header, as many as it has groups; three bits a group
// follow.
[[nodiscard]] constexpr std::uint32_t turbo_row_bit(std::uint32_t record_dims, std::uint32_t group) {
  return record_dims / kTurboGroup + 3 * group;
}

// turbo3: four groups of eight share three words. A code of the first three lies in a nibble of a word, low
// three bits; a code of the fourth has one bit above each of them.
[[nodiscard]] constexpr std::uint64_t turbo3_bit(std::uint64_t group, std::uint64_t element,
                                                 std::uint64_t bit) {
  return group < 3 ? 32 * group + 4 * element + bit : 32 * bit + 4 * element + 3;
}

// Bit number, from the start of a stripe's codes, of bit `bit` of the code of (token, dim). The bits of a
// byte count from the lowest.
[[nodiscard]] constexpr std::uint64_t turbo_code_bit(KvFormat format, KvSide side, std::uint64_t head_dim,
                                                     std::uint64_t token, std::uint64_t dim,
                                                     std::uint64_t bit) {
  const std::uint64_t row_bits = 8 * kv_row_bytes(format, head_dim);
  const std::uint64_t element = dim % kTurboGroup;
  if (format == KvFormat::kTurbo4) {
    // Magnitudes fill the low three bits of the nibbles; the sign of elements 0 to 3 is above those of 0, 2,
    // 4 and 6, that of elements 4 to 7 above those of 1, 3, 5 and 7.
    const std::uint64_t nibble = bit < 3 ? element : element < 4 ? 2 * element : 2 * element - 7;
    return token * row_bits + dim / 8 * 32 + 4 * nibble + bit;
  }
  if (format == KvFormat::kTurbo2) {
    return token * row_bits + dim / 16 * 32 + 4 * element + dim / 8 % 2 * 2 + bit;
  }
  if (side == KvSide::kValue) {
    // Two tokens, four apart, share the words of 16 dimensions.
    return token / 8 * 8 * row_bits + token % 4 * 2 * row_bits + dim / 16 * 96 +
           turbo3_bit(token / 4 % 2 * 2 + dim / 8 % 2, element, bit);
  }
  const std::uint64_t unit = token * row_bits + dim / 32 * 96;
  if (dim / 32 < head_dim / 32) return unit + turbo3_bit(dim / 8 % 4, element, bit);
  // What 16 dimensions leave: a word as above, and the second group's lower bits in half a word.
  if (dim / 8 % 2 == 0) return unit + 4 * element + bit;
  return unit + (bit == 2 ? 4 * element + 3 : 32 + 2 * element + bit);
}

}  // namespace metrale::quant
