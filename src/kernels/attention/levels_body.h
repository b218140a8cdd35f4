// SPDX-License-Identifier: Apache-2.0
// Weighted sums of levels, written once for both instruction sets. `Isa` gives the vectors; it is local to
// the including source, and so is every instance.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/levels.h"

namespace metrale::kernels::levels {
namespace {

// Values go by pairs of keys, the first of which is this; the second comes four later.
constexpr std::size_t first_key(std::size_t pair) {
  return pair / 4 * kOctet + pair % 4;
}

// Asks for part `i`: a little at a time, or the processor waits. Inlined by force, like all that asks: calls
// of a function that does nothing else may be taken for calls without effect.
[[gnu::always_inline]] inline void ask(const Soon& soon, std::size_t i) {
  const std::byte* from = soon.codes + i * soon.part_bytes;
  __builtin_prefetch(from, 0, 2);  // 2: into L2
  for (std::size_t at = 64; at < soon.part_bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}
// For parts [begin, end).
[[gnu::always_inline]] inline void ask(const Soon& soon, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) ask(soon, i);
}
[[gnu::always_inline]] inline void ask_headers(const Soon& soon) {
  for (std::size_t at = 0; at < soon.header_bytes; at += 64) __builtin_prefetch(soon.headers + at, 0, 2);
}

}  // namespace

template <class Isa>
struct Body {
  using Vec = typename Isa::Vec;
  static constexpr std::size_t kLanes = Isa::kLanes;
  static constexpr std::size_t kUnit = 2 * kLanes;  // dimensions of a vector of BF16 pairs

  // Adds W units at `dim` to R rows; of the last unit only the first half where kHalf.
  template <std::size_t R, std::size_t W, bool kHalf = false>
  static void add_units(const Weighted& t, std::size_t row, std::size_t begin, std::size_t end,
                        std::size_t dim) {
    const std::size_t stride = t.value_stride * 2;
    const std::byte* levels = t.levels + begin * stride + (t.first + dim) * 2;
    const float* weights = t.weights + row * kKeyTile;
    float* values = t.values + row * t.stride + dim;
    constexpr std::size_t kVecs = kHalf ? 1 : 2 * W;
    Vec acc[R][kVecs];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kVecs; ++k) acc[i][k] = Isa::load(values + i * t.stride + k * kLanes);
    }
    for (std::size_t key = begin; key < end; ++key, levels += stride) {
      Vec weight[R];
#pragma GCC unroll 8
      for (std::size_t i = 0; i < R; ++i) weight[i] = Isa::broadcast(weights + i * kKeyTile + key);
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kVecs; ++k) {
        const auto pairs = Isa::load_pairs(levels + k / 2 * kUnit * 2);
        const Vec level = k % 2 == 0 ? Isa::first(pairs) : Isa::second(pairs);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < R; ++i) acc[i][k] = Isa::multiply_add(weight[i], level, acc[i][k]);
      }
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kVecs; ++k) Isa::store(values + i * t.stride + k * kLanes, acc[i][k]);
    }
  }

  template <std::size_t R>
  static void add_rows(const Weighted& t, std::size_t row, std::size_t begin, std::size_t end) {
    constexpr std::size_t kWidth = Isa::units(R);
    std::size_t dim = 0;
    for (; dim + kWidth * kUnit <= t.dims; dim += kWidth * kUnit) {
      add_units<R, kWidth>(t, row, begin, end, dim);
    }
    for (; dim + kUnit <= t.dims; dim += kUnit) add_units<R, 1>(t, row, begin, end, dim);
    if (dim < t.dims) add_units<R, 1, true>(t, row, begin, end, dim);
  }

  static void add(const Weighted& t, std::size_t row, std::size_t rows, std::size_t begin, std::size_t end) {
    while (rows > Isa::kMostRows) {
      add_rows<4>(t, row, begin, end);
      row += 4;
      rows -= 4;
    }
    switch (rows) {
      case 6:
        return add_rows<6>(t, row, begin, end);
      case 5:
        return add_rows<5>(t, row, begin, end);
      case 4:
        return add_rows<4>(t, row, begin, end);
      case 3:
        return add_rows<3>(t, row, begin, end);
      case 2:
        return add_rows<2>(t, row, begin, end);
      case 1:
        return add_rows<1>(t, row, begin, end);
      default:
        return;
    }
  }

  // Adds the weighted integers of all pairs of keys to R rows, V vectors of `source` at a time.
  template <std::size_t R, std::size_t V, class Source>
  [[gnu::always_inline]] static void add_integers_at(const WeightedIntegers& t, const Source& source,
                                                     std::size_t row, std::size_t dim) {
    typename Isa::Integers acc[R][V];
#pragma GCC unroll 24
    for (std::size_t i = 0; i < R * V; ++i) acc[i / V][i % V] = Isa::no_integers();
    const std::int16_t* weights = t.weights.whole + row * kKeyTile;
    for (std::size_t pair = 0; pair < t.keys / 2; ++pair) {
      typename Isa::Integers level[V];
      source.load(pair, dim, level);
#pragma GCC unroll 8
      for (std::size_t i = 0; i < R; ++i) {
        const auto weight = Isa::broadcast_pair(weights + i * kKeyTile + 2 * pair);
#pragma GCC unroll 4
        for (std::size_t k = 0; k < V; ++k) acc[i][k] = Isa::add_products(acc[i][k], level[k], weight);
      }
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < R; ++i) {
      Isa::finish_integers(acc[i], t.weights.factors[row + i], t.dims - dim,
                           t.values + (row + i) * t.stride + dim);
    }
  }

  template <std::size_t R, class Source>
  static void add_integer_rows(const WeightedIntegers& t, const Source& source, std::size_t row) {
    Isa::for_cells(
        t.dims, [&](auto vectors, std::size_t dim) { add_integers_at<R, vectors()>(t, source, row, dim); });
  }

  static void add_integers(const WeightedIntegers& t, std::size_t row, std::size_t rows) {
    const typename Isa::ReadIntegers source(t);
    for (; rows >= 4; row += 4, rows -= 4) add_integer_rows<4>(t, source, row);
    switch (rows) {
      case 3:
        return add_integer_rows<3>(t, source, row);
      case 2:
        return add_integer_rows<2>(t, source, row);
      case 1:
        return add_integer_rows<1>(t, source, row);
      default:
        return;
    }
  }

  // Scores by `Isa::score_rows<R>`, as many rows at a time as registers hold.
  static void score(const Scores& t, std::size_t row, std::size_t rows) {
    while (rows > Isa::kMostRows) {
      const std::size_t now = rows < 2 * Isa::kMostRows ? rows / 2 : Isa::kMostRows;
      score_few(t, row, now);
      row += now;
      rows -= now;
    }
    score_few(t, row, rows);
  }

  static void score_few(const Scores& t, std::size_t row, std::size_t rows) {
    switch (rows) {
      case 6:
        return Isa::template score_rows<6>(t, row);
      case 5:
        return Isa::template score_rows<5>(t, row);
      case 4:
        return Isa::template score_rows<4>(t, row);
      case 3:
        return Isa::template score_rows<3>(t, row);
      case 2:
        return Isa::template score_rows<2>(t, row);
      case 1:
        return Isa::template score_rows<1>(t, row);
      default:
        return;
    }
  }
};

}  // namespace metrale::kernels::levels
