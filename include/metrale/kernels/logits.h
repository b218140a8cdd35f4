// SPDX-License-Identifier: Apache-2.0
// Around the output head: gather_rows picks the hidden states whose logits are wanted, argmax picks the
// greedy token.
#pragma once

#include <algorithm>

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>

namespace metrale::kernels {

// out[i] = in[row_ids[i]]
struct GatherRowsArgs {
  std::uint64_t rows;     // uint32
  std::uint64_t row_ids;  // uint32[rows]
  std::uint64_t in;       // type[…][width]
  std::uint64_t out;      // type[rows][width]
  std::uint32_t max_rows;
  std::uint32_t width;
  std::uint32_t in_rows;  // a row id not below it fails the stream
  quant::ElementType type;
};
static_assert(sizeof(GatherRowsArgs) == 48);
inline constexpr gpu::KernelId<GatherRowsArgs> kGatherRows{"logits", "gather_rows"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const GatherRowsArgs& a) {
  return {.grid = {a.max_rows, std::max(1U, (a.width + 1023) / 1024)}, .block = {128}};
}

// tokens[row] = index of the largest finite logit, the lowest on ties; -1 where none is finite.
struct ArgmaxArgs {
  std::uint64_t rows;    // uint32
  std::uint64_t logits;  // float[rows][vocab]
  std::uint64_t tokens;  // int32[rows]
  std::uint32_t max_rows;
  std::uint32_t vocab;
};
static_assert(sizeof(ArgmaxArgs) == 32);
inline constexpr gpu::KernelId<ArgmaxArgs> kArgmax{"logits", "argmax"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const ArgmaxArgs& a) {
  return {.grid = {a.max_rows}, .block = {1024}};
}

}  // namespace metrale::kernels
