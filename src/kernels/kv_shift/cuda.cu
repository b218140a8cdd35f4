// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/kv_shift.h>

#include "kernels/math/pieces.cuh"

using namespace metrale;
using namespace metrale::kernels;
using namespace metrale::kernels::device;
using quant::KvFormat;

namespace {

constexpr std::uint32_t kMostPairs = quant::kKvMaxHeadDim / 2;

// The formats that have kernels store plain elements.
__device__ __forceinline__ ElementType stored_type(KvFormat format) {
  return format == KvFormat::kBf16 ? ElementType::kBf16 : ElementType::kF32;
}

// Where a head's key of a slot begins.
__device__ __forceinline__ std::uint64_t vector_address(const KvShiftArgs& a, std::uint64_t slot,
                                                        std::uint64_t head) {
  const std::uint64_t stripe = (slot / a.block_size * a.num_kv_heads + head) * a.block_size;
  return element_address(stored_type(a.k_format), a.k_pool, (stripe + slot % a.block_size) * a.head_dim);
}

}  // namespace

// The pairs of a row's heads are divided among the threads of its block.
extern "C" __global__ void kv_shift(const __grid_constant__ KvShiftArgs a) {
  __shared__ float cosines[kMostPairs];
  __shared__ float sines[kMostPairs];
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::int64_t slot = pointer<const std::int64_t>(a.slots)[blockIdx.x];
  const std::int32_t delta = pointer<const std::int32_t>(a.deltas)[blockIdx.x];
  if (slot < 0) return;
  if (static_cast<std::uint64_t>(slot) >= std::uint64_t{a.num_blocks} * a.block_size) {
    if (threadIdx.x == 0) report_fault(gpu::DeviceFaultCode::kBadSlot, blockIdx.x, slot);
    return;
  }
  if (delta == 0) return;
  const std::uint32_t half = a.rotary_dim / 2;
  for (std::uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
    // Rounded to float first: part of the contract.
    const double angle = static_cast<float>(delta) * pointer<const float>(a.inv_freq)[i];
    cosines[i] = static_cast<float>(cos(angle));
    sines[i] = static_cast<float>(sin(angle));
  }
  __syncthreads();
  const ElementType type = stored_type(a.k_format);
  const std::uint64_t items = std::uint64_t{a.num_kv_heads} * half;
  for (std::uint64_t item = threadIdx.x; item < items; item += blockDim.x) {
    const auto i = static_cast<std::uint32_t>(item % half);
    const std::uint64_t vector = vector_address(a, static_cast<std::uint64_t>(slot), item / half);
    const float x = load(type, vector, i);
    const float y = load(type, vector, std::uint64_t{half} + i);
    store(type, vector, i, fmaf(-y, sines[i], x * cosines[i]));
    store(type, vector, std::uint64_t{half} + i, fmaf(x, sines[i], y * cosines[i]));
  }
}
