// SPDX-License-Identifier: Apache-2.0
// Which of cuBLASLt's algorithms computes an exact linear layer. A pure function of what the library says, so
// that the choice never depends on the calls that came before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/linear/cublaslt_api.h"

namespace metrale::kernels::cublaslt {

// An algorithm must serve all of these numbers of rows.
inline constexpr std::array<std::uint32_t, 11> kCheckedRows{1, 2, 8, 16, 33, 64, 128, 256, 512, 2048, 8192};

// One algorithm, in the order of the library's estimate at the reference number of rows.
struct Candidate {
  std::int32_t id = 0;
  std::uint32_t tile = 0;
  std::uint32_t stages = 0;
  std::int32_t split_k = 1;
  std::uint32_t reduction = 0;
  std::uint32_t swizzle = 0;
  std::uint32_t custom = 0;
  std::uint16_t inner_shape = 0;
  std::uint16_t cluster = 0;
  std::uint64_t workspace_bytes = 0;  // the most of all kCheckedRows
  float waves = 0;                    // at the reference number of rows
  bool fits = false;                  // every number of kCheckedRows
};

// Adds along in_features in one order whatever the rows, and needs no more than `workspace_bytes`.
[[nodiscard]] constexpr bool is_exact(const Candidate& c, std::uint64_t workspace_bytes) {
  return c.fits && c.split_k <= 1 && c.reduction == 0 && c.workspace_bytes <= workspace_bytes;
}

// Algorithms of this id add along in_features in one order whatever their tiles, stages and clusters: they
// are bit-equal, so that each number of rows may have its own. Found by comparing every candidate of many
// shapes, for the operands, library and device below; the tests on a device hold them to it. Anything else
// has one algorithm a shape.
inline constexpr std::int32_t kOneOrderId = 66;
[[nodiscard]] constexpr bool is_known_to_add_alike(std::size_t library_version, int compute_major,
                                                   int compute_minor) {
  return library_version / 100 == 1301 && compute_major == 9 && compute_minor == 0;
}
// `operands`: the type of both sides.
[[nodiscard]] constexpr bool is_known_to_add_alike(DataType operands) {
  return operands == DataType::kBf16;
}

// Gives the bits of `reference`, both exact.
[[nodiscard]] constexpr bool adds_alike(const Candidate& c, const Candidate& reference) {
  return c.id == kOneOrderId && reference.id == kOneOrderId && c.inner_shape == reference.inner_shape;
}

// The index of the exact candidate number `wanted`, counted from 0 among the exact ones; the last of them
// where there are fewer. Those of kOneOrderId count alone where there are some. None: no candidate is exact.
[[nodiscard]] constexpr std::optional<std::size_t> choose(std::span<const Candidate> candidates,
                                                          std::uint64_t workspace_bytes,
                                                          std::uint32_t wanted) {
  bool one_order = false;
  for (const Candidate& c : candidates) {
    one_order = one_order || (is_exact(c, workspace_bytes) && c.id == kOneOrderId);
  }
  std::optional<std::size_t> chosen;
  std::uint32_t seen = 0;
  for (std::size_t i = 0; i < candidates.size() && seen <= wanted; ++i) {
    if (!is_exact(candidates[i], workspace_bytes)) continue;
    if (one_order && candidates[i].id != kOneOrderId) continue;
    chosen = i;
    ++seen;
  }
  return chosen;
}

// Which of the candidates for one number of rows serves it with the bits of `reference`, in the order of the
// library's estimate. Where memory is what limits a product (few rows), blocks that leave most processors
// idle are what costs: if the first does, the candidate with the most waves up to one is taken.
inline constexpr float kIdleWaves = 0.3F;
[[nodiscard]] constexpr std::optional<std::size_t> choose_alike(std::span<const Candidate> candidates,
                                                                const Candidate& reference,
                                                                std::uint64_t workspace_bytes,
                                                                bool few_rows) {
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& c = candidates[i];
    if (!is_exact(c, workspace_bytes) || !adds_alike(c, reference)) continue;
    if (!chosen) {
      chosen = i;
      few_rows = few_rows && c.waves < kIdleWaves;
    }
    if (few_rows && c.waves <= 1 && c.waves > candidates[*chosen].waves) chosen = i;
  }
  return chosen;
}
inline constexpr std::uint32_t kFewRows = 64;
// Candidates for few rows are asked for at these numbers too: estimates for few rows name few of them.
inline constexpr std::array<std::uint32_t, 2> kFewRowsAlsoAsk{128, 256};

// For few rows and outputs the blocks of the widest tiling are fewer than half the multiprocessors, and each
// of those reads only so fast: as many rows as two blocks share are then computed, if they have memory.
inline constexpr std::uint32_t kSharedRows = 64;
inline constexpr std::uint32_t kFewOuts = 64 * 132 / 2;
[[nodiscard]] constexpr std::uint32_t padded_rows(std::uint32_t outs, std::uint32_t rows,
                                                  std::uint32_t room) {
  return rows < kSharedRows && room >= kSharedRows && outs <= kFewOuts ? kSharedRows : rows;
}

// How many of `rows` rows a launch takes at once with an algorithm that serves kCheckedRows but not `rows`.
[[nodiscard]] constexpr std::uint32_t checked_piece(std::uint32_t rows) {
  std::uint32_t piece = 1;
  for (const std::uint32_t checked : kCheckedRows) {
    if (checked <= rows) piece = checked;
  }
  return piece;
}

}  // namespace metrale::kernels::cublaslt
