// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/logits.h>

#include "kernels/math/pieces.cuh"

using namespace metrale;
using namespace metrale::kernels;
using namespace metrale::kernels::device;

extern "C" __global__ void gather_rows(const __grid_constant__ GatherRowsArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::uint32_t id = pointer<const std::uint32_t>(a.row_ids)[blockIdx.x];
  if (id >= a.in_rows) {
    if (row_thread() == 0) report_fault(gpu::DeviceFaultCode::kBadRowId, blockIdx.x, id);
    return;
  }
  copy_row(a.type, element_address(a.type, a.in, std::uint64_t{id} * a.width),
           element_address(a.type, a.out, std::uint64_t{blockIdx.x} * a.width), a.width);
}

namespace {

constexpr std::uint32_t kNone = ~0U;
constexpr std::uint32_t kLoads = 4;  // independent loads of a thread

// The largest finite value seen and its lowest index.
struct Best {
  float value = -__builtin_huge_valf();
  std::uint32_t index = kNone;

  // `at` is above every index taken before.
  __device__ __forceinline__ void take(float x, std::uint32_t at) {
    if (!isfinite(x) || !(x > value)) return;
    value = x;
    index = at;
  }
  __device__ __forceinline__ void merge(float other, std::uint32_t other_index) {
    if (other > value || (other == value && other_index < index)) {
      value = other;
      index = other_index;
    }
  }
  __device__ __forceinline__ void merge_warp() {
    for (unsigned step = kWarp / 2; step != 0; step /= 2) {
      merge(__shfl_xor_sync(kFullWarp, value, step), __shfl_xor_sync(kFullWarp, index, step));
    }
  }
};

__device__ __forceinline__ void take_four(Best& best, const float4& x, std::uint32_t at) {
  best.take(x.x, at);
  best.take(x.y, at + 1);
  best.take(x.z, at + 2);
  best.take(x.w, at + 3);
}

}  // namespace

// A block for each row; a thread takes its indices in ascending order.
extern "C" __global__ void __launch_bounds__(1024) argmax(const __grid_constant__ ArgmaxArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const auto* row = pointer<const float>(a.logits) + std::uint64_t{blockIdx.x} * a.vocab;
  const auto misplaced =
      static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(row) % 16 / sizeof(float));
  const std::uint32_t head = min(misplaced == 0 ? 0U : 4 - misplaced, a.vocab);
  const std::uint32_t fours = (a.vocab - head) / 4;
  const auto* four = reinterpret_cast<const float4*>(row + head);
  Best best;
  if (threadIdx.x < head) best.take(row[threadIdx.x], threadIdx.x);
  std::uint64_t i = threadIdx.x;
  for (; i + std::uint64_t{kLoads - 1} * blockDim.x < fours; i += std::uint64_t{kLoads} * blockDim.x) {
    float4 x[kLoads];
#pragma unroll
    for (std::uint32_t k = 0; k < kLoads; ++k) x[k] = __ldg(four + i + std::uint64_t{k} * blockDim.x);
#pragma unroll
    for (std::uint32_t k = 0; k < kLoads; ++k) {
      take_four(best, x[k], head + 4 * static_cast<std::uint32_t>(i + std::uint64_t{k} * blockDim.x));
    }
  }
  for (; i < fours; i += blockDim.x) take_four(best, four[i], head + 4 * static_cast<std::uint32_t>(i));
  const std::uint32_t tail = head + 4 * fours + threadIdx.x;
  if (tail < a.vocab) best.take(row[tail], tail);

  __shared__ float values[kWarp];
  __shared__ std::uint32_t indices[kWarp];
  best.merge_warp();
  if (threadIdx.x % kWarp == 0) {
    values[threadIdx.x / kWarp] = best.value;
    indices[threadIdx.x / kWarp] = best.index;
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  best = {};
  if (threadIdx.x < blockDim.x / kWarp) best.merge(values[threadIdx.x], indices[threadIdx.x]);
  best.merge_warp();
  if (threadIdx.x == 0) pointer<std::int32_t>(a.tokens)[blockIdx.x] = static_cast<std::int32_t>(best.index);
}
