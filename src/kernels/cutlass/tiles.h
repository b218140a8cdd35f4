// SPDX-License-Identifier: Apache-2.0
// The launch of CUTLASS's product, for the host and the device code alike.
#pragma once

#include <cstdint>

namespace metrale::kernels::cutlass_fp8 {

inline constexpr int kTileRows = 128;
inline constexpr int kTileOuts = 128;
inline constexpr int kTileIns = 128;
inline constexpr int kStages = 4;
inline constexpr std::uint32_t kThreads = 384;
// The tiles of all stages and the barriers.
inline constexpr std::uint32_t kSharedBytes = kStages * (kTileRows + kTileOuts) * kTileIns + 1024;

}  // namespace metrale::kernels::cutlass_fp8
