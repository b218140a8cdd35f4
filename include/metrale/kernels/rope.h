// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding in two kernels: rope_table turns the step's positions into cosines and sines
// once, rope applies them in every layer. The half-split pairing of Hugging Face: dimension i turns with i +
// rotary_dim / 2.
#pragma once

#include <algorithm>

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>

namespace metrale::kernels {

// table[row][0][i] = factor * cos(a), table[row][1][i] = factor * sin(a), with a = float(position) *
// inv_freq[i] rounded to float.
//
// Dynamic NTK scaling: from position `dynamic_from` on (0: never) the frequency is base^(-i / half_dims),
// with
//   base = dynamic_theta * (dynamic_factor * (position + 1) / dynamic_from - dynamic_factor + 1)
//          ^ (half_dims / (half_dims - 1)),
// computed in double and rounded to float. It is a function of the token's own position alone, the one that
// token-by-token decoding gives, so that chunking never shows.
struct RopeTableArgs {
  std::uint64_t rows;       // uint32
  std::uint64_t positions;  // uint32[rows]
  std::uint64_t inv_freq;   // float[half_dims]
  std::uint64_t table;      // float[rows][2][half_dims]
  std::uint32_t max_rows;
  std::uint32_t half_dims;
  float factor;
  float dynamic_theta = 0;
  float dynamic_factor = 0;
  std::uint32_t dynamic_from = 0;
};
static_assert(sizeof(RopeTableArgs) == 56);
inline constexpr gpu::KernelId<RopeTableArgs> kRopeTable{"rope", "rope_table"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const RopeTableArgs& a) {
  return {.grid = {a.max_rows}, .block = {128}};
}

// In place over the first num_heads * head_dim elements of each row (query and key heads lie side by side).
struct RopeArgs {
  std::uint64_t rows;   // uint32
  std::uint64_t table;  // float[rows][2][rotary_dim / 2]
  std::uint64_t data;   // type[rows], row stride `stride`
  std::uint32_t max_rows;
  std::uint32_t stride;  // elements
  std::uint32_t num_heads;
  std::uint32_t head_dim;
  std::uint32_t rotary_dim;  // even, at most head_dim; the rest passes through
  quant::ElementType type;
};
static_assert(sizeof(RopeArgs) == 48);
inline constexpr gpu::KernelId<RopeArgs> kRope{"rope", "rope"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const RopeArgs& a) {
  // A thread for each eight pairs.
  const std::uint64_t threads = std::uint64_t{a.num_heads} * ((a.rotary_dim / 2 + 7) / 8);
  return {.grid = {a.max_rows, static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (threads + 127) / 128))},
          .block = {128}};
}

}  // namespace metrale::kernels
