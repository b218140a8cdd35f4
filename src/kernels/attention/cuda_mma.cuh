// SPDX-License-Identifier: Apache-2.0
// The instructions that attention on tensor cores is made of, and the layout of a tile in shared memory:
// rows of kDim BF16 elements in chunks of 16 bytes, chunk c of row r at place c ^ (r mod 8), so that the
// eight rows of a matrix load lie in different banks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/math/device.cuh"

namespace metrale::kernels::device {

__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

template <std::uint32_t kDim>
__device__ __forceinline__ std::uint32_t chunk_at(std::uint32_t row, std::uint32_t chunk) {
  return row * (kDim * 2) + (chunk ^ (row & 7U)) * 16;
}

__device__ __forceinline__ void store_word(std::uint32_t to, std::uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ void load_words(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

// 16 bytes, or zeros where `real` is false: then nothing is read.
__device__ __forceinline__ void copy_chunk(std::uint32_t to, const std::byte* from, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(real ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_word(std::uint32_t to, const std::uint32_t* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(__cvta_generic_to_global(from))
               : "memory");
}
__device__ __forceinline__ void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kOpen of this thread's closed groups are under way.
template <int kOpen>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

// Four matrices of 8 x 8: lane l gives the address of row l mod 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

// sum += a * b: 16 rows, 8 columns, 16 terms.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// `low` in the low half, each rounded to nearest even.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float low_bf16(std::uint32_t packed) {
  return __uint_as_float(packed << 16);
}
__device__ __forceinline__ float high_bf16(std::uint32_t packed) {
  return __uint_as_float(packed & 0xFFFF0000U);
}

// Either half is infinite or NaN.
__device__ __forceinline__ bool any_not_finite(std::uint32_t packed) {
  return (packed & 0x7F800000U) == 0x7F800000U || (packed & 0x7F80U) == 0x7F80U;
}

}  // namespace metrale::kernels::device
