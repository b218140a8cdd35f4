// SPDX-License-Identifier: Apache-2.0
// How FlashInfer's decode is divided, for the host that launches it and the device code alike.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <metrale/kernels/attention.h>

namespace metrale::kernels::flashinfer_decode {

inline constexpr std::uint32_t kMostParts = 64;  // of one context
inline constexpr std::array<std::uint32_t, 2> kHeadDims{64, 128};
inline constexpr std::array<std::uint32_t, 5> kGroups{1, 2, 3, 4, 8};  // query heads of a KV head

// A context is divided at multiples of part_tokens, the same for every step.
struct Division {
  std::uint32_t rows;
  std::uint32_t parts;  // of the longest context
  std::uint32_t part_tokens;
};
[[nodiscard]] constexpr Division division(const AttentionArgs& a) {
  const std::uint32_t splits = attention_max_splits(a.table_stride * a.block_size);
  const std::uint32_t splits_of_part = (splits + kMostParts - 1) / kMostParts;
  return {.rows = std::min(a.max_tokens, a.max_seqs),
          .parts = (splits + splits_of_part - 1) / splits_of_part,
          .part_tokens = splits_of_part * kAttentionSplitTokens};
}

// The block that FlashInfer uses: `lanes` threads hold the dimensions of a head.
struct BlockShape {
  std::uint32_t elements;  // of a head that a thread holds
  std::uint32_t lanes;
  std::uint32_t tokens;  // that are loaded side by side
  std::uint32_t tile;    // tokens of a thread
  std::uint32_t shared_bytes;
};
inline constexpr std::uint32_t kStages = 2;
[[nodiscard]] constexpr BlockShape block_shape(std::uint32_t head_dim, std::uint32_t group) {
  constexpr std::uint32_t kElement = 2;  // bytes
  const std::uint32_t elements = std::max<std::uint32_t>(16 / kElement, head_dim / 32);
  const std::uint32_t lanes = head_dim / elements;
  const std::uint32_t threads = std::max<std::uint32_t>(128, lanes * group);
  const std::uint32_t tokens = threads / (lanes * group);
  const std::uint32_t tile = group == 1 ? 4 : 1;
  const std::uint32_t tiles = 2 * kStages * tile * group * tokens * head_dim * kElement;
  const std::uint32_t sums = tokens * group * head_dim * 4;
  const std::uint32_t offsets = tile * threads * 8;
  return {elements, lanes, tokens, tile, std::max(tiles, sums) + std::max(offsets, 2 * group * tokens * 4)};
}

}  // namespace metrale::kernels::flashinfer_decode
