// SPDX-License-Identifier: Apache-2.0
// The vector code of attention: one KV head of a query tile against one split of the context, and the folding
// of splits. docs/kernels.md states the arithmetic. Rows are (query token, query head of the group), token
// first, so that neither end of the range of visible keys ever goes back from row to row.
#pragma once

#include <cstddef>
#include <cstdint>

#include <metrale/quant/element_type.h>

#include "kernels/attention/head_side.h"
#include "kernels/attention/levels.h"

namespace metrale::kernels {

// Maximum, sum and weighted values of `rows` rows, over one split or over all folded so far.
struct SoftmaxState {
  float* max = nullptr;     // [rows]
  float* sum = nullptr;     // [rows]
  float* values = nullptr;  // [rows][padded head_dim]
};

// Keys [begin, end) of a split.
struct KeyRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  [[nodiscard]] bool empty() const { return begin >= end; }
  // The part in the `count` keys from `at` on, counted from there.
  [[nodiscard]] KeyRange of_tile(std::uint32_t at, std::uint32_t count) const {
    const auto here = [at, count](std::uint32_t key) {
      return key < at ? 0U : key - at < count ? key - at : count;
    };
    return {here(begin), here(end)};
  }
};

struct SplitTask {
  std::size_t rows = 0;
  std::size_t head_dim = 0;
  std::size_t padded_dim = 0;  // head_dim rounded up to 16: the row stride of q and of values
  float scale = 0.0F;
  HeadSide keys;
  HeadSide values;
  std::uint32_t start = 0;                 // position of the split's first key
  std::uint32_t next_keys = 0;             // keys of the split that this thread attends next: asked for early
  const float* q = nullptr;                // [rows][padded_dim]
  levels::Queries rounded;                 // the same, where keys are taken by their levels
  const KeyRange* ranges = nullptr;        // [rows]: keys of the split that the row sees
  float* scores = nullptr;                 // scratch [rows][kAttentionSplitTokens]
  float* tile = nullptr;                   // scratch [kKeyTile * padded_dim]
  std::byte* levels = nullptr;             // scratch [levels::tile_bytes(head_dim)], at a multiple of 64
  float* weights = nullptr;                // scratch [rows][kKeyTile]
  levels::RoundedWeights rounded_weights;  // scratch, likewise
  SoftmaxState result;                     // rows that see nothing are left alone
};

void attend_split(const SplitTask& task);

// state = state folded with `part`, for one row.
void fold_row(const SoftmaxState& state, const SoftmaxState& part, std::size_t row, std::size_t padded_dim);

// out[count] = values / sum of one row, rounded once. Overwrites the row's values.
void finish_row(const SoftmaxState& state, std::size_t row, std::size_t padded_dim, std::size_t count,
                quant::ElementType type, void* out);

// Rounds row `row` of `count` dimensions for scores against the levels of `format`; q is readable, and zero,
// up to the next multiple of 16. A row that is not finite gets the factor NaN.
void round_row(quant::KvFormat format, float scale, const float* q, std::size_t count, std::size_t row,
               const levels::Queries& to);

// Rounds a row's weights of a tile's `keys` keys, times the steps of a record, for sums of the integers of
// `format`: whole[keys] by pairs as in levels::RoundedWeights, 0 where a key is not in `seen` (counted from
// the tile's first). `keys` is a multiple of 8; all arrays are accessible up to the next multiple of 16. A
// product in `seen` that is not finite gives zeros and the factor NaN.
void round_tile_weights(quant::KvFormat format, const float* weights, const float* key_steps, KeyRange seen,
                        std::size_t keys, std::int16_t* whole, float& factor);

// dst[padded to 16] = src[count].
void load_row(quant::ElementType type, const void* src, std::size_t count, float* dst);

}  // namespace metrale::kernels
