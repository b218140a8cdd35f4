// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/avx512.h"
#include "kernels/linear/body.h"
#include "kernels/linear/weights.h"

namespace metrale::kernels::linear {
namespace {

// Both factors stay BF16: a step adds the products of a pair. The instruction takes subnormals as zero.
struct Bf16PairWeights {
  using Vec = Avx512::Vec;
  static constexpr std::size_t kStepsPerWord = 1;
  static void widen(Avx512::Words words, Vec* steps) { steps[0] = Avx512::as_f32(words); }
  static Vec multiply_add(Vec x, Vec w, Vec sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
  }
  static Vec load_bias(const std::byte* bias, std::size_t first, std::size_t count) {
    return Avx512::load_bf16(bias + first * 2, count);
  }
};

}  // namespace

const Kernels& avx512_bf16_pair_kernels() {
  static constexpr Kernels kKernels = Body<Avx512, Bf16PairWeights>::kernels();
  return kKernels;
}

}  // namespace metrale::kernels::linear
