// SPDX-License-Identifier: Apache-2.0
// How the embedded linear kernels divide their outputs, for the host that launches them. Plain C++20, usable
// in device code.
#pragma once

#include <cstdint>

namespace metrale::kernels::linear_cuda {

inline constexpr std::uint32_t kMaxGridY = 65535;  // blocks go on to further rows

// linear_few_rows: a warp for each output, over up to kFewRows rows at a time.
inline constexpr std::uint32_t kFewRows = 8;
inline constexpr std::uint32_t kFewBlockOuts = 8;
inline constexpr std::uint32_t kFewThreads = kFewBlockOuts * 32;

// linear_many_rows: a warp for each kTileOuts outputs of kTileRows rows, a block's warps in a grid. So few
// threads keep their sums, weights and addresses in registers.
inline constexpr std::uint32_t kTileOuts = 4;
inline constexpr std::uint32_t kTileRows = 8;
inline constexpr std::uint32_t kOutWarps = 2;
inline constexpr std::uint32_t kRowWarps = 2;
inline constexpr std::uint32_t kManyBlockOuts = kOutWarps * kTileOuts;
inline constexpr std::uint32_t kManyBlockRows = kRowWarps * kTileRows;
inline constexpr std::uint32_t kManyThreads = kOutWarps * kRowWarps * 32;

}  // namespace metrale::kernels::linear_cuda
