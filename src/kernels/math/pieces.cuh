// SPDX-License-Identifier: Apache-2.0
// Rows of elements in pieces of eight: 16-byte accesses where every array of a kernel is aligned for them.
#pragma once

#include "kernels/math/device.cuh"

namespace metrale::kernels::device {

constexpr std::uint32_t kPiece = 8;

[[nodiscard]] __device__ __forceinline__ bool aligned16(std::uint64_t address) {
  return address % 16 == 0;
}

[[nodiscard]] __device__ __forceinline__ std::uint64_t element_address(ElementType type, std::uint64_t base,
                                                                       std::uint64_t index) {
  return base + index * quant::element_bytes(type);
}

// Eight elements from an address that is a multiple of 16.
__device__ __forceinline__ void load_piece(ElementType type, std::uint64_t address, float (&x)[kPiece]) {
  if (type == ElementType::kF32) {
    const float4 low = pointer<const float4>(address)[0];
    const float4 high = pointer<const float4>(address)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    return;
  }
  const uint4 words = *pointer<const uint4>(address);
  const std::uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto low = static_cast<std::uint16_t>(word[i]);
    const auto high = static_cast<std::uint16_t>(word[i] >> 16);
    x[2 * i] = type == ElementType::kBf16 ? quant::bf16_to_float(low) : quant::f16_to_float(low);
    x[2 * i + 1] = type == ElementType::kBf16 ? quant::bf16_to_float(high) : quant::f16_to_float(high);
  }
}

__device__ __forceinline__ void store_piece(ElementType type, std::uint64_t address,
                                            const float (&x)[kPiece]) {
  if (type == ElementType::kF32) {
    pointer<float4>(address)[0] = make_float4(x[0], x[1], x[2], x[3]);
    pointer<float4>(address)[1] = make_float4(x[4], x[5], x[6], x[7]);
    return;
  }
  std::uint32_t word[4];
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t low =
        type == ElementType::kBf16 ? quant::float_to_bf16(x[2 * i]) : quant::float_to_f16(x[2 * i]);
    const std::uint32_t high =
        type == ElementType::kBf16 ? quant::float_to_bf16(x[2 * i + 1]) : quant::float_to_f16(x[2 * i + 1]);
    word[i] = high << 16 | low;
  }
  *pointer<uint4>(address) = make_uint4(word[0], word[1], word[2], word[3]);
}

// This thread's place among those that share a row along the grid's y axis, and how many they are.
[[nodiscard]] __device__ __forceinline__ std::uint32_t row_thread() {
  return blockIdx.y * blockDim.x + threadIdx.x;
}
[[nodiscard]] __device__ __forceinline__ std::uint32_t row_threads() {
  return gridDim.y * blockDim.x;
}

// Copies a row of `width` elements bit by bit, divided among the threads of the row.
__device__ inline void copy_row(ElementType type, std::uint64_t from, std::uint64_t to, std::uint32_t width) {
  const std::uint64_t bytes = std::uint64_t{width} * quant::element_bytes(type);
  std::uint64_t done = 0;
  if (aligned16(from | to)) {
    const std::uint64_t pieces = bytes / 16;
    for (std::uint64_t i = row_thread(); i < pieces; i += row_threads()) {
      pointer<uint4>(to)[i] = pointer<const uint4>(from)[i];
    }
    done = pieces * 16;
  }
  for (std::uint64_t at = done + std::uint64_t{row_thread()} * 2; at < bytes;
       at += std::uint64_t{row_threads()} * 2) {
    *pointer<std::uint16_t>(to + at) = *pointer<const std::uint16_t>(from + at);
  }
}

}  // namespace metrale::kernels::device
