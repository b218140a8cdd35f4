// SPDX-License-Identifier: Apache-2.0
// The tiles of linear, written once for every instruction set: plan.h states their arithmetic. `Isa` gives
// the vectors (cpu_avx2.cpp, avx512.h), `Weights` the meaning of a word. Both are local to the including
// source, and so is every instance: objects compiled for different processors share no code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear/plan.h"

namespace metrale::kernels::linear {

template <class Isa, class Weights>
struct Body {
  using Vec = typename Isa::Vec;
  static constexpr std::size_t kSteps = Weights::kSteps;
  static constexpr std::size_t kWidth = Isa::kWidth;  // lanes of a vector
  static constexpr std::size_t kParts = kLanes / kWidth;
  static constexpr std::size_t kChunkValues = kSteps * kLanes;  // of a row of activations
  // Fewer rows load weights as fast one row of them after another.
  static constexpr std::size_t kLeastTogether = Isa::kMostRows > 3 ? 4 : Isa::kMostRows;
  // More rows have so much to do that memory can wait.
  static constexpr std::size_t kMostStream = 4;
  static constexpr std::size_t kAheadBytes = 16384;

  // One row of weights after another.
  template <std::size_t R>
  static void one_by_one(const Tile& t) {
    for (std::size_t c = 0; c < kPanelOuts; ++c) {
      Vec sums[R][kParts];
#pragma GCC unroll 8
      for (std::size_t i = 0; i < R * kParts; ++i) sums[i / kParts][i % kParts] = Isa::zero();
      const float* x = t.x;
      const std::byte* w = t.weights[c];
      const auto add = [&](const std::byte* from) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (std::size_t part = 0; part < kParts; ++part) {
          Vec v[kSteps];
          Weights::load(from + part * kWidth * 4, v);
#pragma GCC unroll 2
          for (std::size_t s = 0; s < kSteps; ++s) {
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; ++r) {
              const Vec value = Isa::load(x + r * t.x_stride + s * kLanes + part * kWidth);
              sums[r][part] = Weights::multiply_add(value, v[s], sums[r][part]);
            }
          }
        }
        x += kChunkValues;
      };
      for (std::size_t i = 0; i < t.chunks; ++i, w += kChunkBytes) {
        // With more work on each byte the processor no longer looks far enough ahead by itself.
        if constexpr (R > 2) __builtin_prefetch(w + kAheadBytes, 0, 2);
        add(w);
      }
      if (t.tail != nullptr) add(t.tail + c * kChunkBytes);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < R; ++r) Isa::fold(sums[r], t.sums + (r * kPanelOuts + c) * 4);
    }
  }

  // All outputs of the panel at once, a vector's width of the lanes after another.
  template <std::size_t R, bool kFromMemory>
  static void together(const Tile& t) {
    const std::byte* ahead = t.weights[0] + kAheadBytes;
    Vec all[R][kPanelOuts][kParts];
#pragma GCC unroll 2
    for (std::size_t part = 0; part < kParts; ++part) {
      Vec sums[R][kPanelOuts];
#pragma GCC unroll 32
      for (std::size_t i = 0; i < R * kPanelOuts; ++i) sums[i / kPanelOuts][i % kPanelOuts] = Isa::zero();
      const float* x = t.x + part * kWidth;
      const auto add = [&](const std::byte* w0, const std::byte* w1, const std::byte* w2, const std::byte* w3)
                           __attribute__((always_inline)) {
                             Vec v[kPanelOuts][kSteps];
                             Weights::load(w0, v[0]);
                             Weights::load(w1, v[1]);
                             Weights::load(w2, v[2]);
                             Weights::load(w3, v[3]);
#pragma GCC unroll 2
                             for (std::size_t s = 0; s < kSteps; ++s) {
#pragma GCC unroll 8
                               for (std::size_t r = 0; r < R; ++r) {
                                 const Vec value = Isa::load(x + r * t.x_stride + s * kLanes);
#pragma GCC unroll 4
                                 for (std::size_t c = 0; c < kPanelOuts; ++c) {
                                   sums[r][c] = Weights::multiply_add(value, v[c][s], sums[r][c]);
                                 }
                               }
                             }
                             x += kChunkValues;
                           };
      const std::size_t skip = part * kWidth * 4;
      for (std::size_t at = skip; at < t.chunks * kChunkBytes; at += kChunkBytes) {
        if constexpr (kFromMemory) {
#pragma GCC unroll 4
          for (std::size_t c = 0; c < kPanelOuts; ++c) __builtin_prefetch(ahead + c * kChunkBytes, 0, 2);
          ahead += kPanelOuts * kChunkBytes;
        }
        add(t.weights[0] + at, t.weights[1] + at, t.weights[2] + at, t.weights[3] + at);
      }
      if (t.tail != nullptr) {
        const std::byte* tail = t.tail + skip;
        add(tail, tail + kChunkBytes, tail + 2 * kChunkBytes, tail + 3 * kChunkBytes);
      }
#pragma GCC unroll 32
      for (std::size_t i = 0; i < R * kPanelOuts; ++i) {
        all[i / kPanelOuts][i % kPanelOuts][part] = sums[i / kPanelOuts][i % kPanelOuts];
      }
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < R; ++r) Isa::fold_panel(all[r], t.sums + r * kPanelOuts * 4);
  }

  template <std::size_t R>
  static constexpr void add_bodies(Kernels& kernels) {
    if constexpr (R <= Isa::kMostRows) {
      if constexpr (R <= kMostStream) {
        kernels.from_memory[R - 1] = one_by_one<R>;
      } else {
        kernels.from_memory[R - 1] = together<R, true>;
      }
      if constexpr (R < kLeastTogether) {
        kernels.from_cache[R - 1] = one_by_one<R>;
      } else {
        kernels.from_cache[R - 1] = together<R, false>;
      }
      add_bodies<R + 1>(kernels);
    }
  }
  static constexpr Kernels kernels() {
    Kernels kernels{.most_rows = Isa::kMostRows, .steps = kSteps, .from_memory = {}, .from_cache = {}};
    add_bodies<1>(kernels);
    return kernels;
  }
};

}  // namespace metrale::kernels::linear
