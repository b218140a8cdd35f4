// SPDX-License-Identifier: Apache-2.0
// rotate_heads: queries into the basis of rotated keys, and results of attention out of that of rotated
// values (docs/formats/rotation.md), each head on its own, in place, in FP32, rounded once.
#pragma once

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>
#include <metrale/quant/kv_format.h>

namespace metrale::kernels {

struct RotateHeadsArgs {
  std::uint64_t rows;      // uint32
  std::uint64_t data;      // type[rows][num_heads][head_dim], row stride `stride`
  std::uint64_t diagonal;  // float[num_kv_heads][head_dim], of the KV head that a head belongs to; 0: ones
  std::uint32_t max_rows;
  std::uint32_t stride;     // elements
  std::uint32_t num_heads;  // a multiple of num_kv_heads
  std::uint32_t num_kv_heads;
  std::uint32_t head_dim;  // a multiple of 16, at most quant::kKvMaxHeadDim
  quant::ElementType type;
  std::uint32_t inverse;  // 0: x = H (D x); 1: x = D (H x)
  std::uint32_t reserved;
};
static_assert(sizeof(RotateHeadsArgs) == 56);
inline constexpr gpu::KernelId<RotateHeadsArgs> kRotateHeads{"rotation", "rotate_heads"};
// On a device a warp takes a head.
[[nodiscard]] inline gpu::LaunchShape launch_shape(const RotateHeadsArgs& a) {
  return {.grid = {a.max_rows, (a.num_heads + 3) / 4}, .block = {32, 4}};
}

}  // namespace metrale::kernels
