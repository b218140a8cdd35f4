// SPDX-License-Identifier: Apache-2.0
// A block takes eight heads of a query token over its whole context, split by split; scores have a thread for
// each key, values a thread for each dimension, so that every sum has the order of the CPU body.
#include <metrale/kernels/mla_attention.h>
#include <metrale/kernels/step.h>

#include "kernels/math/exp.cuh"
#include "kernels/math/pieces.cuh"

using namespace metrale;
using namespace metrale::kernels;
using namespace metrale::kernels::device;
using quant::KvFormat;

namespace {

constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kHeads = kMlaBlockHeads;
constexpr std::uint32_t kSumLanes = 16;  // of the order in which weights add
constexpr std::uint32_t kMostDims = kMlaMaxLatentDim + kMlaMaxRopeDim;
constexpr std::uint32_t kThreadDims = kMlaMaxLatentDim / kThreads;  // thread t holds dimensions t, t + 128, …
static_assert(kHeads * kSumLanes == kThreads);

__device__ __forceinline__ float minus_infinity() {
  return std::bit_cast<float>(0xFF800000U);
}

// What the block's threads share.
struct Shared {
  float q[kHeads][kMostDims];                    // latent, then rope
  float weights[kHeads][kAttentionSplitTokens];  // scores first
  float max[kHeads];
  float sum[kHeads];
};

// The block's query token: its sequence's block table and the keys [begin, end) that it sees.
struct Query {
  const std::uint32_t* table = nullptr;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

// False, and a report, where the step's lengths contradict each other.
__device__ bool find_query(const MlaAttentionArgs& a, const StepCounts& counts, std::uint32_t token,
                           Query& query) {
  const auto* starts = pointer<const std::uint32_t>(a.query_starts);
  std::uint32_t low = 0;  // the last sequence that starts at the token or before
  std::uint32_t high = counts.num_seqs;
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (starts[middle] <= token ? low : high) = middle;
  }
  const std::uint32_t start = high == 0 ? 0 : starts[low];
  const std::uint32_t stop = high == 0 ? 0 : starts[low + 1];
  const std::uint32_t context = high == 0 ? 0 : pointer<const std::uint32_t>(a.context_lens)[low];
  const bool covers = start <= token && token < stop && stop <= counts.num_tokens;
  if (!covers || stop - start > context || context > std::uint64_t{a.table_stride} * a.block_size) {
    if (threadIdx.x == 0) report_fault(gpu::DeviceFaultCode::kBadStep, low, low);
    return false;
  }
  query.table = pointer<const std::uint32_t>(a.block_tables) +
                std::uint64_t{pointer<const std::uint32_t>(a.table_rows)[low]} * a.table_stride;
  query.end = context - (stop - start) + (token - start) + 1;
  query.begin = a.window != 0 && query.end > a.window ? query.end - a.window : 0;
  return true;
}

// One of a token's two vectors. The formats that have kernels store plain elements.
struct Side {
  ElementType type;
  std::uint64_t pool;
  std::uint32_t dim;
  std::uint32_t block_size;

  __device__ Side(KvFormat format, std::uint64_t from, std::uint32_t dims, std::uint32_t tokens)
      : type(format == KvFormat::kBf16 ? ElementType::kBf16 : ElementType::kF32),
        pool(from),
        dim(dims),
        block_size(tokens) {}
  [[nodiscard]] __device__ std::uint64_t vector(const Query& query, std::uint32_t position) const {
    const std::uint64_t block = query.table[position / block_size];
    return element_address(type, pool, (block * block_size + position % block_size) * dim);
  }
};

// dots[h] += <q[h] from `first` on, a stored vector>, in the order of dimensions.
__device__ __forceinline__ void add_dots(const Side& side, std::uint64_t vector, const Shared& shared,
                                         std::uint32_t first, float (&dots)[kHeads]) {
  for (std::uint32_t i = 0; i < side.dim; i += kPiece) {
    float x[kPiece];
    load_piece(side.type, element_address(side.type, vector, i), x);
#pragma unroll
    for (std::uint32_t k = 0; k < kPiece; ++k) {
#pragma unroll
      for (std::uint32_t h = 0; h < kHeads; ++h) dots[h] = fmaf(shared.q[h][first + i + k], x[k], dots[h]);
    }
  }
}

// Scores of the split at `start`; minus infinity where the query sees nothing.
__device__ void score_split(const MlaAttentionArgs& a, const Side& latents, const Side& ropes,
                            const Query& query, std::uint32_t start, Shared& shared) {
  for (std::uint32_t key = threadIdx.x; key < kAttentionSplitTokens; key += kThreads) {
    const std::uint32_t position = start + key;
    const bool seen = position >= query.begin && position < query.end;
    float dots[kHeads] = {};
    if (seen) {
      add_dots(latents, latents.vector(query, position), shared, 0, dots);
      add_dots(ropes, ropes.vector(query, position), shared, latents.dim, dots);
    }
#pragma unroll
    for (std::uint32_t h = 0; h < kHeads; ++h) {
      shared.weights[h][key] = seen ? dots[h] * a.scale : minus_infinity();
    }
  }
}

// Scores into weights, and the split's maximum and sum; 16 threads for each head.
__device__ void weigh_split(Shared& shared) {
  const std::uint32_t head = threadIdx.x / kSumLanes;
  const std::uint32_t lane = threadIdx.x % kSumLanes;
  float* weights = shared.weights[head];
  float max = minus_infinity();
  for (std::uint32_t key = lane; key < kAttentionSplitTokens; key += kSumLanes)
    max = fmaxf(max, weights[key]);
  for (unsigned step = kSumLanes / 2; step != 0; step /= 2) {
    max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, step));
  }
  float sum = 0;
  for (std::uint32_t key = lane; key < kAttentionSplitTokens; key += kSumLanes) {
    const float weight = exp_exact(weights[key] - max);
    weights[key] = weight;
    sum += weight;
  }
  for (unsigned step = kSumLanes / 2; step != 0; step /= 2) {
    sum += __shfl_down_sync(kFullWarp, sum, step, kSumLanes);
  }
  if (lane == 0) {
    shared.max[head] = max;
    shared.sum[head] = sum;
  }
}

// This thread's dimensions of every head.
struct Values {
  float of[kHeads][kThreadDims];
};

// The weighted latents of the split's keys that the query sees.
__device__ void add_split(const Side& latents, const Query& query, std::uint32_t start, const Shared& shared,
                          Values& values) {
#pragma unroll
  for (std::uint32_t h = 0; h < kHeads; ++h) {
#pragma unroll
    for (std::uint32_t k = 0; k < kThreadDims; ++k) values.of[h][k] = 0;
  }
  const std::uint32_t end = min(query.end, start + kAttentionSplitTokens);
  for (std::uint32_t position = max(query.begin, start); position < end; ++position) {
    const std::uint64_t vector = latents.vector(query, position);
#pragma unroll
    for (std::uint32_t k = 0; k < kThreadDims; ++k) {
      const std::uint32_t dim = k * kThreads + threadIdx.x;
      if (dim >= latents.dim) continue;
      const float x = load(latents.type, vector, dim);
#pragma unroll
      for (std::uint32_t h = 0; h < kHeads; ++h) {
        values.of[h][k] = fmaf(shared.weights[h][position - start], x, values.of[h][k]);
      }
    }
  }
}

// What has been folded so far, of every head.
struct Totals {
  float max[kHeads];
  float sum[kHeads];
  Values values;

  __device__ __forceinline__ void start(const Shared& shared, const Values& part) {
#pragma unroll
    for (std::uint32_t h = 0; h < kHeads; ++h) {
      max[h] = shared.max[h];
      sum[h] = shared.sum[h];
    }
    values = part;
  }
  __device__ __forceinline__ void fold(const Shared& shared, const Values& part) {
#pragma unroll
    for (std::uint32_t h = 0; h < kHeads; ++h) {
      const float larger = max[h] < shared.max[h] ? shared.max[h] : max[h];
      const float keep = exp_exact(max[h] - larger);
      const float add = exp_exact(shared.max[h] - larger);
      max[h] = larger;
      sum[h] = sum[h] * keep + shared.sum[h] * add;
#pragma unroll
      for (std::uint32_t k = 0; k < kThreadDims; ++k) {
        values.of[h][k] = fmaf(values.of[h][k], keep, part.of[h][k] * add);
      }
    }
  }
};

// The queries of the block's heads, zeros for heads that do not exist.
__device__ void load_queries(const MlaAttentionArgs& a, std::uint32_t token, std::uint32_t first,
                             Shared& shared) {
  for (std::uint32_t h = 0; h < kHeads; ++h) {
    const std::uint32_t head = first + h;
    const bool exists = head < a.num_heads;
    const std::uint64_t latent =
        std::uint64_t{token} * a.q_latent_stride + std::uint64_t{head} * a.latent_dim;
    const std::uint64_t rope = std::uint64_t{token} * a.q_rope_stride + std::uint64_t{head} * a.rope_dim;
    for (std::uint32_t i = threadIdx.x; i < a.latent_dim; i += kThreads) {
      shared.q[h][i] = exists ? load(a.type, a.q_latent, latent + i) : 0.0F;
    }
    for (std::uint32_t i = threadIdx.x; i < a.rope_dim; i += kThreads) {
      shared.q[h][a.latent_dim + i] = exists ? load(a.type, a.q_rope, rope + i) : 0.0F;
    }
  }
}

__device__ void store_results(const MlaAttentionArgs& a, std::uint32_t token, std::uint32_t first,
                              const Totals& totals) {
#pragma unroll
  for (std::uint32_t h = 0; h < kHeads; ++h) {
    const std::uint32_t head = first + h;
    const std::uint64_t at = std::uint64_t{token} * a.out_stride + std::uint64_t{head} * a.latent_dim;
#pragma unroll
    for (std::uint32_t k = 0; k < kThreadDims; ++k) {
      const std::uint32_t dim = k * kThreads + threadIdx.x;
      if (head >= a.num_heads || dim >= a.latent_dim) continue;
      store(a.type, a.out, at + dim, totals.values.of[h][k] / totals.sum[h]);
    }
  }
}

}  // namespace

extern "C" __global__ void mla_attention(const __grid_constant__ MlaAttentionArgs a) {
  __shared__ Shared shared;
  const StepCounts counts = *pointer<const StepCounts>(a.counts);
  if (counts.num_tokens > a.max_tokens || counts.num_seqs > a.max_seqs) {
    const bool tokens_fit = counts.num_tokens <= a.max_tokens;
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
      report_fault(gpu::DeviceFaultCode::kTooManyRows, 0, tokens_fit ? counts.num_seqs : counts.num_tokens);
    }
    return;
  }
  const std::uint32_t token = blockIdx.x;
  const std::uint32_t first = blockIdx.y * kHeads;
  Query query;
  if (token >= counts.num_tokens || !find_query(a, counts, token, query)) return;
  const Side latents(a.latent_format, a.latent_pool, a.latent_dim, a.block_size);
  const Side ropes(a.rope_format, a.rope_pool, a.rope_dim, a.block_size);
  load_queries(a, token, first, shared);
  Totals totals;
  const std::uint32_t begin = query.begin / kAttentionSplitTokens * kAttentionSplitTokens;
  for (std::uint32_t start = begin; start < query.end; start += kAttentionSplitTokens) {
    __syncthreads();  // queries are there, and everyone is done with the weights before
    score_split(a, latents, ropes, query, start, shared);
    __syncthreads();
    weigh_split(shared);
    __syncthreads();
    Values part;
    add_split(latents, query, start, shared, part);
    if (start == begin) {
      totals.start(shared, part);
    } else {
      totals.fold(shared, part);
    }
  }
  store_results(a, token, first, totals);
}
