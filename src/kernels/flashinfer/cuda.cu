// SPDX-License-Identifier: Apache-2.0
// FlashInfer's paged decode, given our cache and block tables as they lie: its device code is a template over
// the parameters, and ours answer from AttentionArgs. Each context is divided at fixed multiples, so nothing
// is planned on the host and a captured launch serves any lengths.
#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/variants.cuh>

#include <metrale/kernels/flashinfer.h>
#include <metrale/kernels/step.h>

#include "kernels/flashinfer/division.h"
#include "kernels/math/device.cuh"

using namespace metrale::kernels;
using namespace metrale::kernels::device;
using namespace metrale::kernels::flashinfer_decode;

namespace {

// One number, asked for by any index.
struct Same {
  std::uint32_t value;
  __device__ std::uint32_t operator[](std::uint32_t) const { return value; }
  __device__ std::uint32_t operator*() const { return value; }
};

struct PowerOfTwo {
  std::uint32_t value;
  std::uint32_t shift;
  __device__ operator std::uint32_t() const { return value; }
  __device__ void divmod(std::uint32_t n, std::uint32_t& quotient, std::uint32_t& rest) const {
    quotient = n >> shift;
    rest = n & (value - 1);
  }
};

// The blocks of this block's one sequence.
struct Pages {
  static constexpr std::uint32_t kEnd = ~0U;  // the index behind the last sequence
  struct Begins {
    std::uint32_t end;
    __device__ std::uint32_t operator[](std::uint32_t sequence) const { return sequence == kEnd ? end : 0; }
  };

  PowerOfTwo page_size;
  Begins indptr;
  std::uint32_t batch_size;
  std::uint32_t length;
  std::uint64_t side;    // elements of one side of a block
  std::uint64_t stripe;  // of one head of it
  std::uint32_t head_dim;
  const std::uint32_t* table;
  __nv_bfloat16* k_data;
  __nv_bfloat16* v_data;
  const std::uint32_t* rope_pos_offset;

  __device__ std::uint32_t get_length(std::uint32_t) const { return length; }
  // Positions behind the context are asked for too; what lies there is not read.
  __device__ std::size_t protective_get_kv_offset(std::uint32_t page, std::uint32_t head, std::uint32_t token,
                                                  std::uint32_t dim, std::uint32_t end) const {
    if (page >= end) return 0;
    return table[page] * side + head * stripe + std::uint64_t{token} * head_dim + dim;
  }
};

struct Params {
  using DTypeQ = __nv_bfloat16;
  using DTypeKV = __nv_bfloat16;
  using DTypeO = float;
  using IdType = std::uint32_t;

  __nv_bfloat16* q;
  float* o;
  float* lse;
  Pages paged_kv;
  std::uint32_t padded_batch_size;
  std::uint32_t num_qo_heads;
  std::uint32_t q_stride_n;
  std::uint32_t q_stride_h;
  std::int32_t window_left;
  float logits_soft_cap;
  float sm_scale;
  float rope_rcp_scale;
  float rope_rcp_theta;
  Same request_indices;
  Same kv_tile_indices;
  Same kv_chunk_size_ptr;
  const bool* block_valid_mask;
  bool partition_kv;

  __device__ std::int32_t get_qo_len(std::int32_t) const { return 1; }
  __device__ std::int32_t get_kv_len(std::int32_t) const {
    return static_cast<std::int32_t>(paged_kv.length);
  }
};

// The workspace: float[row][part][query head][head_dim], then float[row][part][query head] of log2 sums.
__device__ float* part_values(const AttentionArgs& a) {
  return pointer<float>(a.workspace);
}
__device__ float* part_sums(const AttentionArgs& a, const Division& d) {
  return part_values(a) + std::uint64_t{d.rows} * d.parts * a.num_q_heads * a.head_dim;
}

// The context of `sequence`, 0 for one that takes no part. A step that is not made of single tokens is
// reported, and nothing of it is computed.
__device__ std::uint32_t context_of(const AttentionArgs& a, const Division& d, std::uint32_t sequence) {
  const auto* counts = pointer<const StepCounts>(a.counts);
  if (sequence >= counts->num_seqs) return 0;
  const std::uint32_t length = pointer<const std::uint32_t>(a.context_lens)[sequence];
  const std::uint32_t* starts = pointer<const std::uint32_t>(a.query_starts) + sequence;
  if (counts->num_seqs <= d.rows && starts[0] == sequence && starts[1] == sequence + 1 &&
      length <= a.table_stride * a.block_size) {
    return length;
  }
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
    report_fault(metrale::gpu::DeviceFaultCode::kBadStep, sequence, sequence);
  }
  return 0;
}

// A block for each part of a context and KV head: grid (row and part, KV head).
template <std::uint32_t kHeadDim, std::uint32_t kGroup>
__device__ void decode_part(const AttentionArgs& a) {
  constexpr BlockShape kShape = block_shape(kHeadDim, kGroup);
  using Variant = flashinfer::DefaultAttention<false, false, false, false>;
  extern __shared__ __align__(16) std::uint8_t shared[];
  const Division d = division(a);
  const std::uint32_t sequence = blockIdx.x / d.parts;
  const std::uint32_t part = blockIdx.x % d.parts;
  const std::uint32_t length = context_of(a, d, sequence);
  if (part * d.part_tokens >= length) return;
  const std::uint64_t stripe = std::uint64_t{a.block_size} * kHeadDim;
  const Params params{
      .q = pointer<__nv_bfloat16>(a.q),
      .o = part_values(a),
      .lse = part_sums(a, d),
      .paged_kv = {.page_size = {a.block_size, 31U - __clz(a.block_size)},
                   .indptr = {a.table_stride},
                   .batch_size = Pages::kEnd,
                   .length = length,
                   .side = a.num_kv_heads * stripe,
                   .stripe = stripe,
                   .head_dim = kHeadDim,
                   .table =
                       pointer<const std::uint32_t>(a.block_tables) +
                       std::uint64_t{pointer<const std::uint32_t>(a.table_rows)[sequence]} * a.table_stride,
                   .k_data = pointer<__nv_bfloat16>(a.k_pool),
                   .v_data = pointer<__nv_bfloat16>(a.v_pool),
                   .rope_pos_offset = nullptr},
      .padded_batch_size = gridDim.x,
      .num_qo_heads = a.num_q_heads,
      .q_stride_n = a.q_stride,
      .q_stride_h = kHeadDim,
      .window_left = -1,
      .logits_soft_cap = 0,
      .sm_scale = a.scale,
      .rope_rcp_scale = 1,
      .rope_rcp_theta = 1,
      .request_indices = {sequence},
      .kv_tile_indices = {part},
      .kv_chunk_size_ptr = {d.part_tokens},
      .block_valid_mask = nullptr,
      .partition_kv = true};
  flashinfer::BatchDecodeWithPagedKVCacheDevice<flashinfer::PosEncodingMode::kNone, kStages, kShape.tile,
                                                kShape.elements, kShape.lanes, kGroup, kShape.tokens,
                                                Variant>(params, shared);
}

}  // namespace

extern "C" __global__ void paged_decode_64_1(const __grid_constant__ AttentionArgs a) {
  decode_part<64, 1>(a);
}
extern "C" __global__ void paged_decode_64_2(const __grid_constant__ AttentionArgs a) {
  decode_part<64, 2>(a);
}
extern "C" __global__ void paged_decode_64_3(const __grid_constant__ AttentionArgs a) {
  decode_part<64, 3>(a);
}
extern "C" __global__ void paged_decode_64_4(const __grid_constant__ AttentionArgs a) {
  decode_part<64, 4>(a);
}
extern "C" __global__ void paged_decode_64_8(const __grid_constant__ AttentionArgs a) {
  decode_part<64, 8>(a);
}
extern "C" __global__ void paged_decode_128_1(const __grid_constant__ AttentionArgs a) {
  decode_part<128, 1>(a);
}
extern "C" __global__ void paged_decode_128_2(const __grid_constant__ AttentionArgs a) {
  decode_part<128, 2>(a);
}
extern "C" __global__ void paged_decode_128_3(const __grid_constant__ AttentionArgs a) {
  decode_part<128, 3>(a);
}
extern "C" __global__ void paged_decode_128_4(const __grid_constant__ AttentionArgs a) {
  decode_part<128, 4>(a);
}
extern "C" __global__ void paged_decode_128_8(const __grid_constant__ AttentionArgs a) {
  decode_part<128, 8>(a);
}

// Joins the parts in the order of positions: grid (row, query head), a thread for each dimension.
extern "C" __global__ void paged_decode_join(const __grid_constant__ AttentionArgs a) {
  const Division d = division(a);
  const std::uint32_t sequence = blockIdx.x;
  const std::uint32_t length = context_of(a, d, sequence);
  if (length == 0) return;
  const std::uint32_t parts = (length + d.part_tokens - 1) / d.part_tokens;
  const std::uint64_t first = (std::uint64_t{sequence} * d.parts) * a.num_q_heads + blockIdx.y;
  const float* sums = part_sums(a, d);
  float largest = -INFINITY;
  for (std::uint32_t i = 0; i < parts; ++i) {
    largest = fmaxf(largest, sums[first + std::uint64_t{i} * a.num_q_heads]);
  }
  float weights = 0;
  float value = 0;
  for (std::uint32_t i = 0; i < parts; ++i) {
    const std::uint64_t at = first + std::uint64_t{i} * a.num_q_heads;
    const float weight = exp2f(sums[at] - largest);
    weights += weight;
    value = fmaf(weight, part_values(a)[at * a.head_dim + threadIdx.x], value);
  }
  store(a.type, a.out, std::uint64_t{sequence} * a.out_stride + blockIdx.y * a.head_dim + threadIdx.x,
        value / weights);
}
