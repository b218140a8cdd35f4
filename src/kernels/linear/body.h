// SPDX-License-Identifier: Apache-2.0
// The arithmetic of linear, written once for every vector width. Outputs lie along the lanes; each output
// adds its products one after another along in_features, so no result depends on how rows and outputs are
// tiled.
//
// A step is one multiply-add of a lane: one FP32 product, or one pair of BF16 products. Weights are read as
// 32-bit words (one FP32 or two 16-bit elements), transposed so that a vector holds one word of kLanes
// outputs, and widened to steps.
//
// `Isa` gives the vectors: cpu_avx2.cpp, avx512.h. `Weights` gives the meaning of a word. Both are local to
// the including source, and so is every instance: objects compiled for different processors share no code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear/plan.h"

namespace metrale::kernels::linear {

template <class Isa, class Weights>
struct Body {
  using Vec = typename Isa::Vec;
  using Words = typename Isa::Words;
  static constexpr std::size_t kLanes = Isa::kLanes;
  static constexpr std::size_t kPanelOuts = 2 * kLanes;
  static constexpr std::size_t kSteps = Weights::kStepsPerWord;
  static constexpr std::size_t kChunkBytes = kLanes * 4;  // of one weight row
  static constexpr std::size_t kGroupChunkBytes = kLanes * kChunkBytes;

  // kLanes weight rows that are read together. Rows past the last repeat it; their results are not stored.
  struct Group {
    const std::byte* rows[kLanes];

    Group(const Job& job, std::size_t first_out) {
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::size_t out = first_out + i < job.out_features ? first_out + i : job.out_features - 1;
        rows[i] = job.weight + out * job.weight_row_bytes;
      }
    }

    [[gnu::always_inline]] void load(std::size_t offset, Words* words) const {
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kLanes; ++i) words[i] = Isa::load_words(rows[i] + offset);
      Isa::transpose(words);
    }

    // The last chunk of a row: absent bytes read as zero.
    void load_tail(std::size_t offset, std::size_t bytes, std::uint32_t* words) const {
      Words loaded[kLanes];
      for (std::size_t i = 0; i < kLanes; ++i) loaded[i] = Isa::load_words_partial(rows[i] + offset, bytes);
      Isa::transpose(loaded);
      for (std::size_t i = 0; i < kLanes; ++i) Isa::store_words(words + i * kLanes, loaded[i]);
    }
  };

  // Fetches weights in address order, some way ahead of the strided reads: memory streams best that way.
  class Ahead {
   public:
    Ahead(const Job& job, std::size_t out) : end_(job.weight + job.out_features * job.weight_row_bytes) {
      next_ = out < job.out_features ? job.weight + out * job.weight_row_bytes : end_;
    }
    [[gnu::always_inline]] void fetch_chunk() {
      if (static_cast<std::size_t>(end_ - next_) < kGroupChunkBytes) return;
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kGroupChunkBytes; i += 64) __builtin_prefetch(next_ + i, 0, 2);
      next_ += kGroupChunkBytes;
    }

   private:
    const std::byte* next_;
    const std::byte* end_;
  };

  static void store_out(const Job& job, std::size_t row, std::size_t first_out, Vec sum) {
    const std::size_t left = job.out_features - first_out;
    const std::size_t count = left < kLanes ? left : kLanes;
    if (job.bias != nullptr) sum = Isa::add(sum, Weights::load_bias(job.bias, first_out, count));
    std::byte* to = job.out + row * job.out_row_bytes;
    switch (job.out_type) {
      case quant::ElementType::kF32:
        return Isa::store_f32(to + first_out * 4, sum, count);
      case quant::ElementType::kBf16:
        return Isa::store_bf16(to + first_out * 2, sum, count);
      case quant::ElementType::kF16:
        return Isa::store_f16(to + first_out * 2, sum, count);
    }
  }

  // ---- few rows: the weights go from memory through registers into the sums

  template <std::size_t R>
  static void few_rows_group(const Job& job, std::size_t first_out) {
    const Group group(job, first_out);
    Ahead ahead(job, first_out + kLanes);
    const std::uint32_t* x[R];
    for (std::size_t r = 0; r < R; ++r) x[r] = job.x + (r < job.rows ? r : 0) * job.x_stride;
    Vec sums[R];
    for (std::size_t r = 0; r < R; ++r) sums[r] = Isa::zero();
    const std::size_t full = job.weight_row_bytes / kChunkBytes * kChunkBytes;
    std::size_t step = 0;
    for (std::size_t offset = 0; offset < full; offset += kChunkBytes) {
      ahead.fetch_chunk();
      Words words[kLanes];
      group.load(offset, words);
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kLanes; ++i, step += kSteps) {
        Vec w[kSteps];
        Weights::widen(words[i], w);
        add_steps<R>(x, step, w, sums);
      }
    }
    if (full != job.weight_row_bytes) {
      alignas(64) std::uint32_t words[kLanes * kLanes];
      group.load_tail(full, job.weight_row_bytes - full, words);
      for (std::size_t i = 0; step < job.steps; ++i, step += kSteps) {
        Vec w[kSteps];
        Weights::widen(Isa::load_words(words + i * kLanes), w);
        add_steps<R>(x, step, w, sums);
      }
    }
    for (std::size_t r = 0; r < R && r < job.rows; ++r) store_out(job, r, first_out, sums[r]);
  }

  template <std::size_t R>
  [[gnu::always_inline]] static void add_steps(const std::uint32_t* const* x, std::size_t step, const Vec* w,
                                               Vec* sums) {
#pragma GCC unroll 2
    for (std::size_t s = 0; s < kSteps; ++s) {
#pragma GCC unroll 8
      for (std::size_t r = 0; r < R; ++r) {
        sums[r] = Weights::multiply_add(Isa::broadcast(x[r] + step + s), w[s], sums[r]);
      }
    }
  }

  static void few_rows(const Job& job, std::size_t out_begin, std::size_t out_end) {
    for (std::size_t out = out_begin; out < out_end; out += kLanes) {
      if (job.rows == 1) {
        few_rows_group<1>(job, out);
      } else if (job.rows == 2) {
        few_rows_group<2>(job, out);
      } else if (job.rows <= 4 || Isa::kFewRows == 4) {
        few_rows_group<4>(job, out);
      } else {
        few_rows_group<Isa::kFewRows>(job, out);
      }
    }
  }

  // ---- many rows: the weights of kPanelOuts outputs are widened once into a panel [step][kPanelOuts]

  static void pack(const Job& job, std::size_t first_out, std::size_t step_begin, std::size_t step_end,
                   float* panel) {
    for (std::size_t g = 0; g < kPanelOuts; g += kLanes) {
      const Group group(job, first_out + g);
      Ahead ahead(job, first_out + g + kPanelOuts);
      const std::size_t end_bytes = step_end == job.steps ? job.weight_row_bytes : step_end / kSteps * 4;
      std::size_t offset = step_begin / kSteps * 4;
      float* to = panel + g;
      for (; offset + kChunkBytes <= end_bytes; offset += kChunkBytes) {
        ahead.fetch_chunk();
        Words words[kLanes];
        group.load(offset, words);
#pragma GCC unroll 16
        for (std::size_t i = 0; i < kLanes; ++i) to = store_steps(words[i], to);
      }
      if (offset < end_bytes) {
        alignas(64) std::uint32_t words[kLanes * kLanes];
        group.load_tail(offset, end_bytes - offset, words);
        for (std::size_t i = 0; i * 4 < end_bytes - offset; ++i) {
          to = store_steps(Isa::load_words(words + i * kLanes), to);
        }
      }
    }
  }

  [[gnu::always_inline]] static float* store_steps(Words words, float* to) {
    Vec w[kSteps];
    Weights::widen(words, w);
#pragma GCC unroll 2
    for (std::size_t s = 0; s < kSteps; ++s) {
      Isa::store(to, w[s]);
      to += kPanelOuts;
    }
    return to;
  }

  // sums[R][kPanelOuts] (+)= x[R][steps] * panel[steps][kPanelOuts]
  template <std::size_t R>
  static void multiply(const std::uint32_t* x, std::size_t x_stride, const float* panel, std::size_t steps,
                       bool first, float* sums) {
    Vec acc[R][2];
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
      acc[r][0] = first ? Isa::zero() : Isa::load(sums + r * kPanelOuts);
      acc[r][1] = first ? Isa::zero() : Isa::load(sums + r * kPanelOuts + kLanes);
    }
    for (std::size_t s = 0; s < steps; ++s, panel += kPanelOuts) {
      const Vec w0 = Isa::load(panel);
      const Vec w1 = Isa::load(panel + kLanes);
      __builtin_prefetch(panel + 8 * kPanelOuts);
      __builtin_prefetch(panel + 8 * kPanelOuts + kLanes);
#pragma GCC unroll 16
      for (std::size_t r = 0; r < R; ++r) {
        const Vec value = Isa::broadcast(x + r * x_stride + s);
        acc[r][0] = Weights::multiply_add(value, w0, acc[r][0]);
        acc[r][1] = Weights::multiply_add(value, w1, acc[r][1]);
      }
    }
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
      Isa::store(sums + r * kPanelOuts, acc[r][0]);
      Isa::store(sums + r * kPanelOuts + kLanes, acc[r][1]);
    }
  }

  // As many rows of [row, row_end) as a tile takes, through one slice of steps. Returns how many.
  static std::size_t multiply_tile(const Job& job, std::size_t row, std::size_t row_end, std::size_t step,
                                   std::size_t steps, const float* panel, float* sums) {
    const std::uint32_t* x = job.x + row * job.x_stride + step;
    const std::size_t left = row_end - row;
    const bool first = step == 0;
    if (left >= Isa::kTileRows) {
      multiply<Isa::kTileRows>(x, job.x_stride, panel, steps, first, sums);
      return Isa::kTileRows;
    }
    if constexpr (Isa::kTileRows > 8) {
      if (left >= 8) {
        multiply<8>(x, job.x_stride, panel, steps, first, sums);
        return 8;
      }
    }
    if (left >= 4) {
      multiply<4>(x, job.x_stride, panel, steps, first, sums);
      return 4;
    }
    if (left >= 2) {
      multiply<2>(x, job.x_stride, panel, steps, first, sums);
      return 2;
    }
    multiply<1>(x, job.x_stride, panel, steps, first, sums);
    return 1;
  }

  // Outputs [first_out, first_out + kPanelOuts) of rows [row_begin, row_end). `panel` holds kPanelSteps
  // steps, `sums` a row of kPanelOuts floats for each of the rows.
  static void many_rows(const Job& job, std::size_t first_out, std::size_t row_begin, std::size_t row_end,
                        float* panel, float* sums) {
    for (std::size_t step = 0; step < job.steps; step += kPanelSteps) {
      const std::size_t step_end = job.steps - step < kPanelSteps ? job.steps : step + kPanelSteps;
      pack(job, first_out, step, step_end, panel);
      for (std::size_t row = row_begin; row < row_end;) {
        float* tile_sums = sums + (row - row_begin) * kPanelOuts;
        const std::size_t done = multiply_tile(job, row, row_end, step, step_end - step, panel, tile_sums);
        if (step_end == job.steps) {
          for (std::size_t r = 0; r < done; ++r) {
            store_out(job, row + r, first_out, Isa::load(tile_sums + r * kPanelOuts));
            if (first_out + kLanes < job.out_features) {
              store_out(job, row + r, first_out + kLanes, Isa::load(tile_sums + r * kPanelOuts + kLanes));
            }
          }
        }
        row += done;
      }
    }
  }

  static constexpr Kernels kernels() {
    return {.lanes = kLanes, .few_rows_max = Isa::kFewRows, .few_rows = few_rows, .many_rows = many_rows};
  }
};

}  // namespace metrale::kernels::linear
