// SPDX-License-Identifier: Apache-2.0
// HeadSide: the keys or the values of one KV head of one sequence, found through its block table and read in
// groups of 16 tokens, whose vectors lie at one distance from each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <metrale/quant/kv_format.h>

namespace metrale::kernels {

inline constexpr std::uint32_t kGroup = 16;
inline constexpr std::uint32_t kKeyTile = 64;  // keys that are worked on at a time: four groups
inline constexpr std::uint32_t kTileGroups = kKeyTile / kGroup;

struct HeadSide {
  quant::KvFormat format{};
  const std::byte* stripes = nullptr;    // the head's stripe of block 0
  std::uint64_t block_bytes = 0;         // from block to block
  std::uint64_t row_bytes = 0;           // from token to token
  std::uint64_t header_bytes = 0;        // the same, of the headers behind the block's codes
  float scale = 1.0F;                    // of formats that have one
  const std::uint32_t* table = nullptr;  // the sequence's block ids
  std::uint32_t block_size = 0;
  std::byte* copies =
      nullptr;  // scratch float[kKeyTile * head_dim]: a tile that cannot be read where it lies

  // True where a group never straddles blocks.
  [[nodiscard]] bool is_grouped() const { return block_size % kGroup == 0; }

  [[nodiscard]] const std::byte* row(std::uint32_t position) const {
    return stripes + table[position / block_size] * block_bytes + position % block_size * row_bytes;
  }

  [[nodiscard]] const std::byte* header(std::uint32_t position) const {
    return stripes + table[position / block_size] * block_bytes + block_size * row_bytes +
           position % block_size * header_bytes;
  }

  // Address of the group at `position`, of which `count` tokens exist. The rest of the group is readable and
  // means nothing. `slot` numbers the groups in use at a time.
  [[nodiscard]] const std::byte* group(std::uint32_t position, std::uint32_t count,
                                       std::uint32_t slot) const {
    if (is_grouped()) return row(position);
    std::byte* copy = copies + std::size_t{slot} * kGroup * row_bytes;
    for (std::uint32_t i = 0; i < kGroup && i < count; ++i) {
      std::memcpy(copy + i * row_bytes, row(position + i), row_bytes);
    }
    return copy;
  }

  // Addresses of the groups of the tile at `position`, of which `count` tokens exist; groups without any
  // repeat the last one.
  void tile(std::uint32_t position, std::uint32_t count, const std::byte* (&groups)[kTileGroups]) const {
    for (std::uint32_t g = 0; g < kTileGroups; ++g) {
      const std::uint32_t done = g * kGroup;
      groups[g] = g == 0 || done < count ? group(position + done, count - done, g) : groups[g - 1];
    }
  }
};

}  // namespace metrale::kernels
