// SPDX-License-Identifier: Apache-2.0
#include <metrale/kernels/embedding.h>

#include "kernels/math/pieces.cuh"

using namespace metrale;
using namespace metrale::kernels;
using namespace metrale::kernels::device;

namespace {

__device__ __forceinline__ void convert_row(const EmbeddingArgs& a, std::uint64_t from, std::uint64_t to) {
  // A product with one would still turn signalling NaN quiet.
  const bool scaled = a.scale != 1.0F;
  std::uint64_t done = 0;
  if (aligned16(from | to)) {
    const std::uint32_t pieces = a.width / kPiece;
    for (std::uint64_t i = row_thread(); i < pieces; i += row_threads()) {
      float x[kPiece];
      load_piece(a.table_type, element_address(a.table_type, from, i * kPiece), x);
#pragma unroll
      for (std::uint32_t k = 0; k < kPiece; ++k) x[k] = scaled ? x[k] * a.scale : x[k];
      store_piece(a.out_type, element_address(a.out_type, to, i * kPiece), x);
    }
    done = std::uint64_t{pieces} * kPiece;
  }
  for (std::uint64_t i = done + row_thread(); i < a.width; i += row_threads()) {
    const float x = load(a.table_type, from, i);
    store(a.out_type, to, i, scaled ? x * a.scale : x);
  }
}

}  // namespace

extern "C" __global__ void embedding(const __grid_constant__ EmbeddingArgs a) {
  if (blockIdx.x >= read_rows(a.rows, a.max_rows)) return;
  const std::int32_t id = pointer<const std::int32_t>(a.token_ids)[blockIdx.x];
  if (id < 0 || static_cast<std::uint32_t>(id) >= a.vocab) {
    if (row_thread() == 0) report_fault(gpu::DeviceFaultCode::kBadTokenId, blockIdx.x, id);
    return;
  }
  const std::uint64_t from = element_address(a.table_type, a.table, static_cast<std::uint64_t>(id) * a.width);
  const std::uint64_t to = element_address(a.out_type, a.out, std::uint64_t{blockIdx.x} * a.width);
  if (a.table_type == a.out_type && a.scale == 1.0F) {
    copy_row(a.out_type, from, to, a.width);
  } else {
    convert_row(a, from, to);
  }
}
