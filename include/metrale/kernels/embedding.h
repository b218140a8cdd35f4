// SPDX-License-Identifier: Apache-2.0
// embedding: out[row] = scale * table[token_ids[row]], the product in FP32 and then rounded to nearest even.
#pragma once

#include <algorithm>

#include <metrale/gpu/kernel_id.h>
#include <metrale/quant/element_type.h>

namespace metrale::kernels {

struct EmbeddingArgs {
  std::uint64_t rows;       // uint32: number of rows of this step
  std::uint64_t token_ids;  // int32[rows]; an id outside [0, vocab) fails the stream
  std::uint64_t table;      // table_type[vocab][width]
  std::uint64_t out;        // out_type[rows][width]
  std::uint32_t max_rows;
  std::uint32_t width;
  std::uint32_t vocab;
  quant::ElementType table_type;
  quant::ElementType out_type;
  float scale = 1.0F;
};
static_assert(sizeof(EmbeddingArgs) == 56);
inline constexpr gpu::KernelId<EmbeddingArgs> kEmbedding{"embedding", "embedding"};
[[nodiscard]] inline gpu::LaunchShape launch_shape(const EmbeddingArgs& a) {
  return {.grid = {a.max_rows, std::max(1U, (a.width + 1023) / 1024)}, .block = {128}};
}

}  // namespace metrale::kernels
