// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/kv_write.h>

#include "kernels/math/pieces.cuh"

using namespace metrale;
using namespace metrale::kernels;
using namespace metrale::kernels::device;
using quant::KvFormat;

namespace {

// Where a head's vector of a slot begins in a pool. The formats that have kernels store plain elements.
template <KvFormat Format>
__device__ __forceinline__ std::uint64_t vector_address(const KvWriteArgs& a, std::uint64_t pool,
                                                        std::uint64_t slot, std::uint64_t head) {
  constexpr std::uint64_t kBytes = quant::kv_format_info(Format).code_bits / 8;
  static_assert(quant::kv_format_info(Format).header == quant::KvHeader::kNone);
  const std::uint64_t stripe = (slot / a.block_size * a.num_kv_heads + head) * a.block_size;
  return pool + (stripe + slot % a.block_size) * a.head_dim * kBytes;
}

// The vector is divided among the block's threads.
template <KvFormat Format>
__device__ __forceinline__ void write_as(const KvWriteArgs& a, std::uint64_t from, std::uint64_t to) {
  constexpr ElementType kStored = Format == KvFormat::kBf16 ? ElementType::kBf16 : ElementType::kF32;
  std::uint32_t done = 0;
  if (aligned16(from | to)) {
    const std::uint32_t pieces = a.head_dim / kPiece;
    for (std::uint32_t i = threadIdx.x; i < pieces; i += blockDim.x) {
      float x[kPiece];
      load_piece(a.type, element_address(a.type, from, std::uint64_t{i} * kPiece), x);
      store_piece(kStored, element_address(kStored, to, std::uint64_t{i} * kPiece), x);
    }
    done = pieces * kPiece;
  }
  for (std::uint32_t i = done + threadIdx.x; i < a.head_dim; i += blockDim.x) {
    store(kStored, to, i, load(a.type, from, i));
  }
}

__device__ __forceinline__ void write_side(const KvWriteArgs& a, std::uint64_t from, std::uint64_t pool,
                                           KvFormat format, std::uint64_t slot, std::uint32_t head) {
  const std::uint64_t vector =
      element_address(a.type, from, std::uint64_t{blockIdx.x} * a.stride + std::uint64_t{head} * a.head_dim);
  if (format == KvFormat::kBf16) {
    write_as<KvFormat::kBf16>(a, vector, vector_address<KvFormat::kBf16>(a, pool, slot, head));
  } else {
    write_as<KvFormat::kFp32>(a, vector, vector_address<KvFormat::kFp32>(a, pool, slot, head));
  }
}

}  // namespace

// A block for each head of a row.
extern "C" __global__ void kv_write(const __grid_constant__ KvWriteArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::int64_t slot = pointer<const std::int64_t>(a.slots)[blockIdx.x];
  if (slot < 0) return;
  if (static_cast<std::uint64_t>(slot) >= std::uint64_t{a.num_blocks} * a.block_size) {
    if (threadIdx.x == 0 && blockIdx.y == 0) report_fault(gpu::DeviceFaultCode::kBadSlot, blockIdx.x, slot);
    return;
  }
  write_side(a, a.k, a.k_pool, a.k_format, static_cast<std::uint64_t>(slot), blockIdx.y);
  if (a.v == 0) return;
  write_side(a, a.v, a.v_pool, a.v_format, static_cast<std::uint64_t>(slot), blockIdx.y);
}
