// SPDX-License-Identifier: Apache-2.0
// A tile of stored vectors read into FP32, compiled once per instruction set.
#if defined(METRALE_KERNELS_ATTENTION_READ_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_ATTENTION_READ_INL_H_
#undef METRALE_KERNELS_ATTENTION_READ_INL_H_
#else
#define METRALE_KERNELS_ATTENTION_READ_INL_H_
#endif

#include "kernels/attention/decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

// rows[key][head_dim] = the vectors from `position` on, of which `count` exist, of a tile at most.
template <KvSide kSide>
void read_tile(const HeadSide& side, std::size_t head_dim, std::uint32_t position, std::uint32_t count,
               float* rows) {
  for (std::uint32_t key = 0; key < count && key < kKeyTile; ++key) {
    const std::uint32_t at = position + key;
    const std::byte* stripe = side.stripes + side.table[at / side.block_size] * side.block_bytes;
    const std::uint32_t token = at % side.block_size;
    const StoredVector vector{.stripe = stripe,
                              .token = token,
                              .row_bytes = side.row_bytes,
                              .header = stripe + side.block_size * side.row_bytes + token * side.header_bytes,
                              .head_dim = head_dim};
    read_vector<kSide>(side.format, vector, side.scale, rows + key * head_dim);
  }
}

// The groups of a tile that was read, as of HeadSide::tile().
inline void groups_of_read(const float* rows, std::size_t head_dim, std::uint32_t count,
                           const std::byte* (&groups)[kTileGroups]) {
  for (std::uint32_t g = 0; g < kTileGroups; ++g) {
    const std::uint32_t first = g * kGroup < count ? g * kGroup : 0;
    groups[g] = reinterpret_cast<const std::byte*>(rows + first * head_dim);
  }
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_READ_INL_H_
