// SPDX-License-Identifier: Apache-2.0
// flashinfer: FlashInfer's paged decode over our cache, a foreign kernel in builds that have its headers
// (METRALE_PEERS). Not bit-equal to paged_attention, though a row's result still depends on the row alone.
#pragma once

#include <metrale/kernels/attention.h>

namespace metrale::kernels {

// As paged_attention, for steps in which every sequence has one query token: sequence s has token s. BF16
// queries, BF16 cache, head_dim 64 or 128, 1, 2, 3, 4 or 8 query heads a KV head, no window, a workspace for
// min(max_tokens, max_seqs) rows; throws Unsupported otherwise. A step with other queries is the stream's
// failure.
[[nodiscard]] constexpr bool flashinfer_serves(std::uint32_t head_dim, std::uint32_t group) {
  return (head_dim == 64 || head_dim == 128) && (group <= 4 || group == 8) && group != 0;
}
static_assert(sizeof(AttentionArgs) == 160);
// cuda-only
inline constexpr gpu::KernelId<AttentionArgs> kFlashInferDecode{"flashinfer", "paged_decode"};

}  // namespace metrale::kernels
