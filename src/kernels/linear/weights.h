// SPDX-License-Identifier: Apache-2.0
// How words of weights become factors. Included by the instruction-set sources only.
#pragma once

#include <cstddef>

namespace metrale::kernels::linear {

template <class Isa>
struct F32Weights {
  using Vec = typename Isa::Vec;
  static constexpr std::size_t kSteps = 1;
  [[gnu::always_inline]] static void load(const std::byte* from, Vec* steps) {
    steps[0] = Isa::as_f32(Isa::load_words(from));
  }
  [[gnu::always_inline]] static Vec multiply_add(Vec x, Vec w, Vec sum) {
    return Isa::multiply_add(x, w, sum);
  }
};

template <class Isa>
struct Bf16Weights : F32Weights<Isa> {
  using Vec = typename Isa::Vec;
  static constexpr std::size_t kSteps = 2;
  [[gnu::always_inline]] static void load(const std::byte* from, Vec* steps) {
    const auto words = Isa::load_words(from);
    steps[0] = Isa::bf16_low(words);
    steps[1] = Isa::bf16_high(words);
  }
};

template <class Isa>
struct F16Weights : F32Weights<Isa> {
  using Vec = typename Isa::Vec;
  static constexpr std::size_t kSteps = 2;
  [[gnu::always_inline]] static void load(const std::byte* from, Vec* steps) {
    Isa::f16_pair(Isa::load_words(from), steps);
  }
};

}  // namespace metrale::kernels::linear
