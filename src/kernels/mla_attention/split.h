// SPDX-License-Identifier: Apache-2.0
// The vector code of mla_attention: the rows of a query tile against one split of the context.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/head_side.h"
#include "kernels/attention/split.h"

namespace metrale::kernels {

struct MlaSplitTask {
  std::size_t rows = 0;
  std::size_t latent_dim = 0;  // both are multiples of 16
  std::size_t rope_dim = 0;
  float scale = 0.0F;
  HeadSide latents;
  HeadSide ropes;
  std::uint32_t start = 0;           // position of the split's first key
  std::uint32_t next_keys = 0;       // keys of the split that this thread attends next: asked for early
  const float* q = nullptr;          // [rows][latent_dim + rope_dim]
  const KeyRange* ranges = nullptr;  // [rows]: keys of the split that the row sees
  float* scores = nullptr;           // scratch [rows * kAttentionSplitTokens + kKeyTile]
  float* read = nullptr;        // scratch [kAttentionSplitTokens][latent_dim]: latents, once read, or copied
  float* read_ropes = nullptr;  // scratch [kKeyTile][rope_dim]
  float* tile = nullptr;        // scratch [latent_dim + rope_dim][kKeyTile]
  SoftmaxState result;          // rows that see nothing are left alone
};

void attend_mla_split(const MlaSplitTask& task);

}  // namespace metrale::kernels
