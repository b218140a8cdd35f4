// SPDX-License-Identifier: Apache-2.0
// kv_write: stores the step's keys and values into the paged cache by slot mapping, as the formats of the two
// sides say. Keys and values come as they are: a rotated format rotates them here. With `v` and `v_pool` of 0
// there is no value side: keys alone are stored, as the latents and the rope keys of mla_attention are.
#pragma once

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>
#include <metrale/quant/kv_format.h>

namespace metrale::kernels {

// What a layer adds to a side's format, by KV head; an address of 0 means nothing is added.
struct KvSideParams {
  std::uint64_t scales = 0;    // float[num_kv_heads] of fp8 and nvfp4; 0: ones
  std::uint64_t diagonal = 0;  // float[num_kv_heads][head_dim] of rotated formats; 0: ones
  std::uint64_t mean = 0;      // float[num_kv_heads][head_dim], taken off before; 0: zeros
};

struct KvWriteArgs {
  std::uint64_t rows;    // uint32
  std::uint64_t k;       // type[rows][num_kv_heads][head_dim], row stride `stride`
  std::uint64_t v;       // the same; 0: no values
  std::uint64_t slots;   // int64[rows]: block * block_size + offset; negative writes nothing
  std::uint64_t k_pool;  // num_blocks sides of kv_side_bytes(k_format, …)
  std::uint64_t v_pool;  // 0 where `v` is
  std::uint32_t max_rows;
  std::uint32_t stride;  // elements
  std::uint32_t num_kv_heads;
  std::uint32_t head_dim;
  std::uint32_t block_size;
  std::uint32_t num_blocks;  // a slot beyond the pool fails the stream
  quant::ElementType type;
  quant::KvFormat k_format;
  quant::KvFormat v_format;  // not looked at without values
  std::uint32_t reserved;
  KvSideParams k_params{};
  KvSideParams v_params{};
};
static_assert(sizeof(KvWriteArgs) == 136);
inline constexpr gpu::KernelId<KvWriteArgs> kKvWrite{"kv_write", "kv_write"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const KvWriteArgs& a) {
  return {.grid = {a.max_rows, a.num_kv_heads}, .block = {64}};
}

}  // namespace metrale::kernels
