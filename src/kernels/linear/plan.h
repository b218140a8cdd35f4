// SPDX-License-Identifier: Apache-2.0
// What linear's driver (cpu.cpp), its tiles (one source per instruction set) and the ends of its rows
// (rows.cpp, results.h) share.
//
// A row of weights is a row of 32-bit words: one FP32 element or two 16-bit ones. 16 words are a chunk, and
// word i of a row belongs to lane i mod 16. A lane adds its products in the order of in_features; the 16
// lanes are summed at the end by one tree. No sum depends on which rows and outputs are computed together.
#pragma once

#include <cstddef>
#include <cstdint>

#include <metrale/quant/element_type.h>

namespace metrale::kernels::linear {

inline constexpr std::size_t kLanes = 16;
inline constexpr std::size_t kChunkBytes = 64;  // of a row of weights
inline constexpr std::size_t kPanelOuts = 4;    // outputs that are computed together
inline constexpr std::size_t kMostRows = 6;     // of a tile, on any processor

// Some rows times the outputs of a panel.
struct Tile {
  const std::byte* weights[kPanelOuts];
  std::size_t chunks;     // whole ones of a row of weights
  const std::byte* tail;  // [kPanelOuts][kChunkBytes]: what is left of each row, then zeros; null: nothing
  const float* x;  // [rows][chunk][steps][kLanes]: the activations of a word's elements; zero at the end
  std::size_t x_stride;  // 32-bit values
  float* sums;           // [rows][kPanelOuts][4]: lane i with lane i + 8, then i + 4
};
using TileBody = void (*)(const Tile&);

struct Kernels {
  std::size_t most_rows;  // of a tile
  // Activations of a word: two where FP32 numbers meet 16-bit weights, else one 32-bit value.
  std::size_t steps;
  // [rows - 1], for a panel that lies in memory or in a near cache. The same bits.
  TileBody from_memory[kMostRows];
  TileBody from_cache[kMostRows];
};

// FP32 activations, by weight type.
struct KernelSet {
  Kernels f32;
  Kernels bf16;
  Kernels f16;
};

[[nodiscard]] const KernelSet& avx2_kernels();
[[nodiscard]] const KernelSet& avx512_kernels();
// BF16 activations and BF16 weights, two to a word on either side.
[[nodiscard]] const Kernels& avx512_bf16_pair_kernels();

// Writes one row of activations as FP32 numbers in the order of Tile::x, whole chunks.
void spread_row(quant::ElementType type, const std::byte* from, std::size_t count, std::size_t steps,
                float* to);

}  // namespace metrale::kernels::linear
