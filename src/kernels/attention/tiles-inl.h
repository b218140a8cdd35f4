// SPDX-License-Identifier: Apache-2.0
// What the register tiles of attention share, compiled once per instruction set.
//
// Every element of the two products is one chain of fused multiply-adds in increasing order, so which tile
// computes it does not show in its bits.
#if defined(METRALE_KERNELS_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef METRALE_KERNELS_ATTENTION_TILES_INL_H_
#undef METRALE_KERNELS_ATTENTION_TILES_INL_H_
#else
#define METRALE_KERNELS_ATTENTION_TILES_INL_H_
#endif

#include <type_traits>

#include "kernels/attention/split.h"
#include "kernels/math/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace metrale::kernels::HWY_NAMESPACE {

inline constexpr std::size_t kMaxHeight = 6;  // rows of a register tile over widened keys or values
// So few rows read keys and values where they lie: widening them first would cost more than it saves.
inline constexpr std::size_t kMaxDirect = 8;

template <std::size_t kHeight>
using Height = std::integral_constant<std::size_t, kHeight>;

// Calls body(Height<rows>(), row), 1 <= rows <= kMaxDirect.
template <class Body>
HWY_INLINE void with_height(std::size_t rows, std::size_t row, const Body& body) {
  switch (rows) {
    case 8:
      return body(Height<8>(), row);
    case 7:
      return body(Height<7>(), row);
    case 6:
      return body(Height<6>(), row);
    case 5:
      return body(Height<5>(), row);
    case 4:
      return body(Height<4>(), row);
    case 3:
      return body(Height<3>(), row);
    case 2:
      return body(Height<2>(), row);
    case 1:
      return body(Height<1>(), row);
    default:
      return;
  }
}

// Calls body(height, row) for groups of rows that cover [first, rows): one group of at most kMaxDirect, or
// groups of at most kMaxHeight.
template <class Body>
HWY_INLINE void for_row_groups(std::size_t first, std::size_t rows, const Body& body) {
  if (rows - first <= kMaxDirect) return with_height(rows - first, first, body);
  std::size_t row = first;
  for (; row + kMaxHeight <= rows; row += kMaxHeight) body(Height<kMaxHeight>(), row);
  with_height(rows - row, row, body);
}

// Asks for bytes that are needed soon. Any address will do.
HWY_INLINE void prefetch(const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);  // 2: into L2
}

}  // namespace metrale::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // METRALE_KERNELS_ATTENTION_TILES_INL_H_
