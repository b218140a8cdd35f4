// SPDX-License-Identifier: Apache-2.0
// kv_shift: moves cached keys to other positions, in place, for context shift. A key that was stored at
// position p becomes what it would be at p + delta: each pair (i, i + rotary_dim / 2) of the vector turns by
// the angle float(delta) * inv_freq[i], rounded to float. Values know no position and stay as they are.
//
// Only rope with frequencies that do not depend on the position can be moved so: dynamic scaling cannot. A
// factor of rope_table is in the stored key already and stays there. Each shift rounds the key to its format
// once more.
#pragma once

#include <metrale/gpu/kernel_id.h>
#include <metrale/kernels/kv_write.h>
#include <metrale/quant/kv_format.h>

namespace metrale::kernels {

struct KvShiftArgs {
  std::uint64_t rows;      // uint32
  std::uint64_t slots;     // int64[rows]: block * block_size + offset; negative does nothing; none twice
  std::uint64_t deltas;    // int32[rows]: new position minus old one; 0 leaves the bytes as they are
  std::uint64_t inv_freq;  // float[rotary_dim / 2]
  std::uint64_t k_pool;    // num_blocks sides of kv_side_bytes(k_format, …)
  std::uint32_t max_rows;
  std::uint32_t num_kv_heads;
  std::uint32_t head_dim;
  std::uint32_t rotary_dim;  // even, at most head_dim; the rest passes through
  std::uint32_t block_size;
  std::uint32_t num_blocks;  // a slot beyond the pool fails the stream
  quant::KvFormat k_format;
  std::uint32_t reserved;
  KvSideParams k_params{};  // those that the keys were stored with
};
static_assert(sizeof(KvShiftArgs) == 96);
inline constexpr gpu::KernelId<KvShiftArgs> kKvShift{"kv_shift", "kv_shift"};
// On a device a block takes a row.
[[nodiscard]] inline gpu::LaunchShape launch_shape(const KvShiftArgs& a) {
  return {.grid = {a.max_rows}, .block = {128}};
}

}  // namespace metrale::kernels
