// SPDX-License-Identifier: Apache-2.0
// How a 32-bit word of weights becomes steps. Included by the instruction-set sources only.
#pragma once

#include <cstddef>

namespace metrale::kernels::linear {

template <class Isa>
struct F32Weights {
  using Vec = typename Isa::Vec;
  static constexpr std::size_t kStepsPerWord = 1;
  [[gnu::always_inline]] static void widen(typename Isa::Words words, Vec* steps) {
    steps[0] = Isa::as_f32(words);
  }
  [[gnu::always_inline]] static Vec multiply_add(Vec x, Vec w, Vec sum) {
    return Isa::multiply_add(x, w, sum);
  }
  static Vec load_bias(const std::byte* bias, std::size_t first, std::size_t count) {
    return Isa::as_f32(Isa::load_words_partial(bias + first * 4, count * 4));
  }
};

template <class Isa>
struct Bf16Weights {
  using Vec = typename Isa::Vec;
  static constexpr std::size_t kStepsPerWord = 2;
  [[gnu::always_inline]] static void widen(typename Isa::Words words, Vec* steps) {
    steps[0] = Isa::bf16_low(words);
    steps[1] = Isa::bf16_high(words);
  }
  [[gnu::always_inline]] static Vec multiply_add(Vec x, Vec w, Vec sum) {
    return Isa::multiply_add(x, w, sum);
  }
  static Vec load_bias(const std::byte* bias, std::size_t first, std::size_t count) {
    return Isa::load_bf16(bias + first * 2, count);
  }
};

template <class Isa>
struct F16Weights {
  using Vec = typename Isa::Vec;
  static constexpr std::size_t kStepsPerWord = 2;
  [[gnu::always_inline]] static void widen(typename Isa::Words words, Vec* steps) {
    Isa::f16_pair(words, steps);
  }
  [[gnu::always_inline]] static Vec multiply_add(Vec x, Vec w, Vec sum) {
    return Isa::multiply_add(x, w, sum);
  }
  static Vec load_bias(const std::byte* bias, std::size_t first, std::size_t count) {
    return Isa::load_f16(bias + first * 2, count);
  }
};

}  // namespace metrale::kernels::linear
