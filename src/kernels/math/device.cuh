// SPDX-License-Identifier: Apache-2.0
// What every device kernel needs: row counts, elements of any type as floats, sums over a warp and a block in
// one fixed order, and the report of a step that makes no sense.
//
// Compiled with --fmad=false: a fused multiply-add is written fmaf().
#pragma once

#include <cstdint>

#include <metrale/gpu/device_fault.h>
#include <metrale/quant/element_type.h>
#include <metrale/quant/float_convert.h>

// The address of a gpu::DeviceFault in pinned memory; the backend sets it when it loads the module.
extern "C" __device__ unsigned long long metrale_device_fault;
extern "C" __device__ unsigned long long metrale_device_fault = 0;
// One thread of the module has reported.
extern "C" __device__ unsigned int metrale_device_fault_taken;
extern "C" __device__ unsigned int metrale_device_fault_taken = 0;

namespace metrale::kernels::device {

using quant::ElementType;

template <class T>
__device__ __forceinline__ T* pointer(std::uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// The first report wins. Without a place for reports the kernel traps. Host memory takes plain stores only:
// across the bus there are no atomic operations, so the module's own word says who may write.
__device__ inline void report_fault(gpu::DeviceFaultCode code, std::uint32_t row, std::int64_t value) {
  auto* fault = pointer<volatile gpu::DeviceFault>(metrale_device_fault);
  if (fault == nullptr) __trap();
  if (atomicExch(&metrale_device_fault_taken, 1U) != 0U) return;
  if (fault->code != gpu::DeviceFaultCode::kNone) return;  // another module was first
  fault->row = row;
  fault->value = value;
  __threadfence_system();
  fault->code = code;
}

// The step's row count; 0, and a report, where it is more than the launch was made for.
__device__ __forceinline__ std::uint32_t read_rows(std::uint64_t address, std::uint32_t max_rows) {
  const std::uint32_t rows = *pointer<const std::uint32_t>(address);
  if (rows <= max_rows) return rows;
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
    report_fault(gpu::DeviceFaultCode::kTooManyRows, 0, rows);
  }
  return 0;
}

__device__ __forceinline__ float load(ElementType type, std::uint64_t base, std::uint64_t index) {
  switch (type) {
    case ElementType::kF32:
      return pointer<const float>(base)[index];
    case ElementType::kBf16:
      return quant::bf16_to_float(pointer<const std::uint16_t>(base)[index]);
    case ElementType::kF16:
      return quant::f16_to_float(pointer<const std::uint16_t>(base)[index]);
  }
  return 0;
}

__device__ __forceinline__ void store(ElementType type, std::uint64_t base, std::uint64_t index,
                                      float value) {
  switch (type) {
    case ElementType::kF32:
      pointer<float>(base)[index] = value;
      return;
    case ElementType::kBf16:
      pointer<std::uint16_t>(base)[index] = quant::float_to_bf16(value);
      return;
    case ElementType::kF16:
      pointer<std::uint16_t>(base)[index] = quant::float_to_f16(value);
      return;
  }
}

constexpr unsigned kWarp = 32;
constexpr unsigned kFullWarp = 0xFFFFFFFFU;

// Sum over the warp in every lane: i with i + 16, i + 8, … in one order.
__device__ __forceinline__ float warp_sum(float value) {
  for (unsigned step = kWarp / 2; step != 0; step /= 2) value += __shfl_xor_sync(kFullWarp, value, step);
  return value;
}

// Sum over a block of whole warps, at most 32, in every thread. All threads call it.
__device__ inline float block_sum(float value) {
  __shared__ float parts[kWarp];
  value = warp_sum(value);
  const unsigned warp = threadIdx.x / kWarp;
  const unsigned lane = threadIdx.x % kWarp;
  __syncthreads();  // the parts of an earlier sum have been read
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  return warp_sum(lane < blockDim.x / kWarp ? parts[lane] : 0.0F);
}

}  // namespace metrale::kernels::device
