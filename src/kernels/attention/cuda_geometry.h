// SPDX-License-Identifier: Apache-2.0
// Sizes that the attention kernels and the host body that launches them agree on. Plain C++20, usable in
// device code.
#pragma once

#include <cstdint>

#include <metrale/kernels/attention.h>

namespace metrale::kernels {

inline constexpr std::uint32_t kMaxAttentionWarps = 8;
inline constexpr std::uint32_t kReadGroupTokens = 16;  // keys of such a group are read together or not at all
inline constexpr std::uint32_t kSoftmaxTile = 32;      // keys that share one step of the running maximum
inline constexpr std::uint32_t kPartTokens = 128;      // keys whose softmax starts anew: a part of a split
inline constexpr std::uint32_t kSplitParts = kAttentionSplitTokens / kPartTokens;
inline constexpr std::uint32_t kTileRows = 16;    // rows of a warp on tensor cores
inline constexpr std::uint32_t kGenericRows = 8;  // rows of a block of the generic kernels, one a warp
inline constexpr std::uint32_t kCombineThreads = 128;

// The kernels on tensor cores: head_dim up to `kDim`.
template <std::uint32_t kDim>
struct TensorGeometry {
  static constexpr std::uint32_t kRowBytes = kDim * 2;
  static constexpr std::uint32_t kTileBytes = kSoftmaxTile * kRowBytes;
  // Queries wait in registers if there are enough of them, else beside the keys.
  static constexpr bool kQueryInRegisters = kDim <= 128;
  static constexpr std::uint32_t kQueryBytes = kQueryInRegisters ? 0 : kTileRows * kRowBytes;

  // Split kernel: each warp has a ring of tiles, keys and values in turn. Where its ring was, it leaves a
  // part's values [16][kDim], maxima [16] and sums [16]; the rows begin 8 banks apart.
  static constexpr std::uint32_t kRingTiles = kDim <= 64 ? 6 : 3;
  static constexpr std::uint32_t kSplitWarpBytes = kRingTiles * kTileBytes + kQueryBytes;
  static constexpr std::uint32_t kPartRowFloats = kDim + 8;
  static constexpr std::uint32_t kPartMaxima = kTileRows * kPartRowFloats;
  static constexpr std::uint32_t kPartSums = kPartMaxima + kTileRows;
  static_assert((kPartSums + kTileRows) * 4 <= kRingTiles * kTileBytes);

  // Prefill kernel: two stages of keys and values for all warps, and each warp's values of the split and of
  // all splits before it. The latter are touched once a split, so they make way where room is short.
  static constexpr std::uint32_t kStageKeys = kDim <= 128 ? 64 : 32;
  static constexpr std::uint32_t kStageBytes = 2 * kStageKeys * kRowBytes;
  static constexpr std::uint32_t kValuesBytes = kTileRows * kDim * 4;
  static constexpr bool kTotalsInShared = kDim <= 128;
  static constexpr std::uint32_t kPrefillBytes = 2 * kStageBytes;
  static constexpr std::uint32_t kPrefillWarpBytes = (kTotalsInShared ? 2 : 1) * kValuesBytes + kQueryBytes;
};

// Shared floats of the generic kernels: the rows' queries, and a tile of keys or values whose rows begin in
// different banks.
[[nodiscard]] constexpr std::uint32_t generic_row_floats(std::uint32_t head_dim) {
  return head_dim | 1U;
}
[[nodiscard]] constexpr std::uint32_t generic_shared_bytes(std::uint32_t head_dim) {
  return (kGenericRows * head_dim + kSoftmaxTile * generic_row_floats(head_dim)) * 4;
}

}  // namespace metrale::kernels
