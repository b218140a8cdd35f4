// SPDX-License-Identifier: Apache-2.0
// What all attention kernels share: the step's sequences and their checks, the work list that each block
// computes from the lengths on the device, where a key and a split's result lie, and the folding of parts
// into splits and of splits into the result.
#pragma once

#include <cstddef>
#include <cstdint>

#include <metrale/kernels/attention.h>
#include <metrale/kernels/step.h>

#include "kernels/attention/cuda_geometry.h"
#include "kernels/math/device.cuh"

namespace metrale::kernels::device {

constexpr float kLog2E = 1.44269504F;
constexpr std::uint32_t kMaxContext = 0x7FFF0000U;  // so that no rounded-up position wraps
constexpr std::uint32_t kMaxThreads = kMaxAttentionWarps * kWarp;

// A sequence of the step. Without queries there is nothing to do.
struct Sequence {
  std::uint32_t first_row = 0;  // of its queries in the step
  std::uint32_t queries = 0;
  std::uint32_t context = 0;

  [[nodiscard]] __device__ std::uint32_t position(std::uint32_t query) const {
    return context - queries + query;
  }
};

// Positions [begin, end) that a query sees.
struct Span {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  [[nodiscard]] __device__ bool meets(std::uint32_t from, std::uint32_t to) const {
    return begin < to && from < end;
  }
};

__device__ __forceinline__ Span visible(const AttentionArgs& a, std::uint32_t position) {
  const std::uint32_t end = position + 1;
  return {a.window != 0 && end > a.window ? end - a.window : 0, end};
}

__device__ __forceinline__ std::uint32_t group_heads(const AttentionArgs& a) {
  return a.num_q_heads / a.num_kv_heads;
}

// Nothing, and a report, where the step is larger than the launch was made for.
__device__ inline StepCounts read_counts(const AttentionArgs& a) {
  const StepCounts counts = *pointer<const StepCounts>(a.counts);
  const bool tokens_fit = counts.num_tokens <= a.max_tokens;
  if (tokens_fit && counts.num_seqs <= a.max_seqs) return counts;
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    report_fault(gpu::DeviceFaultCode::kTooManyRows, 0, tokens_fit ? counts.num_seqs : counts.num_tokens);
  }
  return {};
}

// Sequence `seq` of the step; without queries, and reported by the first block, where its lengths contradict
// each other.
__device__ inline Sequence read_sequence(const AttentionArgs& a, const StepCounts& counts,
                                         std::uint32_t seq) {
  const auto* starts = pointer<const std::uint32_t>(a.query_starts);
  const std::uint32_t start = starts[seq];
  const std::uint32_t stop = starts[seq + 1];
  const std::uint32_t context = pointer<const std::uint32_t>(a.context_lens)[seq];
  const bool in_step = start <= stop && stop <= counts.num_tokens;
  const bool in_table = context <= kMaxContext && context <= std::uint64_t{a.table_stride} * a.block_size;
  const bool usable = in_step && in_table && stop - start <= context;
  const bool covers = (seq != 0 || start == 0) && (seq + 1 != counts.num_seqs || stop == counts.num_tokens);
  if (!(usable && covers) && blockIdx.x == 0) report_fault(gpu::DeviceFaultCode::kBadStep, seq, seq);
  return usable ? Sequence{start, stop - start, context} : Sequence{};
}

// All queries of the sequence have a row of the workspace: its splits are work of their own.
__device__ __forceinline__ bool is_split(const AttentionArgs& a, const Sequence& seq) {
  return a.workspace != 0 && seq.first_row + seq.queries <= a.workspace_rows;
}

// Splits [begin, end) that some query of the sequence sees.
__device__ __forceinline__ Span splits_of(const AttentionArgs& a, const Sequence& seq) {
  return {visible(a, seq.position(0)).begin / kAttentionSplitTokens,
          (seq.context + kAttentionSplitTokens - 1) / kAttentionSplitTokens};
}

// Where the result of a split goes: maximum, sum, values.
__device__ __forceinline__ float* workspace_row(const AttentionArgs& a, std::uint32_t row, std::uint32_t head,
                                                std::uint32_t split) {
  const std::uint64_t capacity = std::uint64_t{a.table_stride} * a.block_size;
  const std::uint64_t splits = (capacity + kAttentionSplitTokens - 1) / kAttentionSplitTokens;
  const std::uint64_t at = (std::uint64_t{row} * a.num_q_heads + head) * splits + split;
  return pointer<float>(a.workspace) + at * (a.head_dim + 2U);
}

// Exclusive prefix sums of one number per thread into prefix[0 .. blockDim.x]; all threads call it.
__device__ inline void block_prefix(std::uint32_t own, std::uint32_t* prefix) {
  __shared__ std::uint32_t warp_totals[kMaxAttentionWarps];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  std::uint32_t sum = own;
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const std::uint32_t before = __shfl_up_sync(kFullWarp, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == kWarp - 1) warp_totals[warp] = sum;
  __syncthreads();
  for (unsigned w = 0; w < warp; ++w) sum += warp_totals[w];
  prefix[threadIdx.x + 1] = sum;
  if (threadIdx.x == 0) prefix[0] = 0;
  __syncthreads();
}

// The last index whose prefix is at most `item`, which is below prefix[count].
__device__ inline std::uint32_t find_item(const std::uint32_t* prefix, std::uint32_t count,
                                          std::uint32_t item) {
  std::uint32_t low = 0;
  std::uint32_t high = count;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (prefix[middle] <= item ? low : high) = middle;
  }
  return low;
}

// Calls work(seq, sequence, item of the sequence) for each item that falls to `worker` of `workers`, where
// sequence s has count(sequence) items; workers take turns, in one direction and back. All threads of the
// block call it with the same `workers`; threads of one worker stay together, and where a worker is a whole
// block, `work` may wait for it. Items of 256 sequences number fewer than the rows of their tensors, so 32
// bits hold them.
template <class Count, class Work>
__device__ __forceinline__ void for_items(const AttentionArgs& a, std::uint32_t worker, std::uint32_t workers,
                                          const Count& count, const Work& work) {
  __shared__ std::uint32_t prefix[kMaxThreads + 1];
  const StepCounts counts = read_counts(a);
  std::uint64_t base = 0;
  for (std::uint32_t first = 0; first < counts.num_seqs; first += blockDim.x) {
    const std::uint32_t own = first + threadIdx.x;
    block_prefix(own < counts.num_seqs ? count(read_sequence(a, counts, own)) : 0, prefix);
    const std::uint32_t total = prefix[blockDim.x];
    for (std::uint64_t round = base / workers;; ++round) {
      const std::uint64_t at = round * workers + (round % 2 == 0 ? worker : workers - 1 - worker);
      if (at < base) continue;
      if (at >= base + total) break;
      const auto item = static_cast<std::uint32_t>(at - base);
      const std::uint32_t found = find_item(prefix, blockDim.x, item);
      work(first + found, read_sequence(a, counts, first + found), item - prefix[found]);
    }
    base += total;
    __syncthreads();  // before the prefixes change
  }
}

// One KV head of one sequence: where its keys and values lie.
struct HeadBlocks {
  const std::uint32_t* table;
  std::uint32_t block_size;

  __device__ HeadBlocks(const AttentionArgs& a, std::uint32_t seq)
      : table(pointer<const std::uint32_t>(a.block_tables) +
              std::uint64_t{pointer<const std::uint32_t>(a.table_rows)[seq]} * a.table_stride),
        block_size(a.block_size) {}
};

// One side of one KV head: blocks are block_bytes apart, tokens row_bytes.
struct HeadStripes {
  const std::byte* stripes;
  std::uint64_t block_bytes;
  std::uint32_t row_bytes;

  __device__ HeadStripes(const AttentionArgs& a, std::uint64_t pool, std::uint32_t element_bytes,
                         std::uint32_t kv_head)
      : row_bytes(a.head_dim * element_bytes) {
    const std::uint64_t stripe = std::uint64_t{a.block_size} * row_bytes;
    stripes = pointer<const std::byte>(pool) + kv_head * stripe;
    block_bytes = a.num_kv_heads * stripe;
  }
  // Of a token's row, from `stripes` on.
  [[nodiscard]] __device__ std::int64_t offset(std::uint32_t block, std::uint32_t slot) const {
    return static_cast<std::int64_t>(block * block_bytes + std::uint64_t{slot} * row_bytes);
  }
};

// A key is read where a query of `queries` sees one of its group of 16 positions; older blocks may be gone,
// and later slots hold anything.
__device__ __forceinline__ bool is_read(const Span& queries, std::uint32_t position) {
  return position < queries.end && (position | (kReadGroupTokens - 1)) >= queries.begin;
}

__device__ __forceinline__ float minus_infinity() {
  return __int_as_float(static_cast<int>(0xFF800000U));
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What exponents are taken against: the maximum, or 0 while nothing has been seen.
__device__ __forceinline__ float exponent_base(float maximum) {
  return maximum == minus_infinity() ? 0.0F : maximum;
}

// Folds the maximum and sum of the next part or split into the totals; values are folded by fold_value with
// `keep` and `add`.
struct Fold {
  float keep;
  float add;
};
__device__ __forceinline__ Fold fold(float& total_max, float& total_sum, float max, float sum) {
  const float larger = fmaxf(total_max, max);
  const float base = exponent_base(larger);
  const Fold factors{exp2_fast(total_max - base), exp2_fast(max - base)};
  total_max = larger;
  total_sum = fmaf(total_sum, factors.keep, sum * factors.add);
  return factors;
}
__device__ __forceinline__ float fold_value(const Fold& factors, float total, float value) {
  return fmaf(total, factors.keep, value * factors.add);
}

}  // namespace metrale::kernels::device
