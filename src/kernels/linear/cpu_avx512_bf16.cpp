// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/avx512.h"
#include "kernels/linear/body.h"
#include "kernels/linear/weights.h"

namespace metrale::kernels::linear {
namespace {

// Both factors stay BF16: a step adds the two products of a word. The instruction takes subnormals as zero.
struct Bf16PairWeights : F32Weights<Avx512> {
  static Vec multiply_add(Vec x, Vec w, Vec sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
  }
};

}  // namespace

const Kernels& avx512_bf16_pair_kernels() {
  static constexpr Kernels kKernels = Body<Avx512, Bf16PairWeights>::kernels();
  return kKernels;
}

}  // namespace metrale::kernels::linear
