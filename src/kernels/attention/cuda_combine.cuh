// SPDX-License-Identifier: Apache-2.0
// Folds what the split kernels left in the workspace, in position order, and writes the output.
#pragma once

#include "kernels/attention/cuda_work.cuh"

namespace metrale::kernels::device {

// The sequence of the step's row `row`: the last that starts at or before it.
__device__ inline std::uint32_t find_sequence(const AttentionArgs& a, const StepCounts& counts,
                                              std::uint32_t row) {
  const auto* starts = pointer<const std::uint32_t>(a.query_starts);
  // One query each, as in decode.
  if (row < counts.num_seqs && starts[row] == row && starts[row + 1] == row + 1) return row;
  std::uint32_t low = 0;
  std::uint32_t high = counts.num_seqs;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (starts[middle] <= row ? low : high) = middle;
  }
  return low;
}

// Dimension `dim` of one row and head: splits [begin, end) of the results from `from` on.
__device__ __forceinline__ float combine_dim(const float* from, std::uint32_t stride, std::uint32_t dim,
                                             std::uint32_t splits) {
  constexpr std::uint32_t kAhead = 16;  // loads under way
  float total_max = from[0];
  float total_sum = from[1];
  float total = from[2 + dim];
  for (std::uint32_t first = 1; first < splits; first += kAhead) {
    float max[kAhead];
    float sum[kAhead];
    float value[kAhead];
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      if (first + i >= splits) break;
      const float* split = from + std::uint64_t{first + i} * stride;
      max[i] = split[0];
      sum[i] = split[1];
      value[i] = split[2 + dim];
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      if (first + i >= splits) break;
      const Fold factors = fold(total_max, total_sum, max[i], sum[i]);
      total = fold_value(factors, total, value[i]);
    }
  }
  return total / total_sum;
}

// A block for each row and head of the sequences that were split.
__device__ __forceinline__ void combine_kernel(const AttentionArgs& a) {
  const StepCounts counts = read_counts(a);
  if (counts.num_seqs == 0) return;
  const std::uint64_t items = std::uint64_t{min(counts.num_tokens, a.workspace_rows)} * a.num_q_heads;
  for (std::uint64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const auto row = static_cast<std::uint32_t>(item / a.num_q_heads);
    const auto head = static_cast<std::uint32_t>(item % a.num_q_heads);
    const Sequence seq = read_sequence(a, counts, find_sequence(a, counts, row));
    if (row < seq.first_row || row - seq.first_row >= seq.queries || !is_split(a, seq)) continue;
    const Span seen = visible(a, seq.position(row - seq.first_row));
    const std::uint32_t begin = seen.begin / kAttentionSplitTokens;
    const std::uint32_t end = (seen.end + kAttentionSplitTokens - 1) / kAttentionSplitTokens;
    const float* from = workspace_row(a, row, head, begin);
    const std::uint64_t out = std::uint64_t{row} * a.out_stride + std::uint64_t{head} * a.head_dim;
    for (std::uint32_t dim = threadIdx.x; dim < a.head_dim; dim += blockDim.x) {
      store(a.type, a.out, out + dim, combine_dim(from, a.head_dim + 2, dim, end - begin));
    }
  }
}

}  // namespace metrale::kernels::device
