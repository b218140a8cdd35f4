// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/avx512.h"
#include "kernels/linear/body.h"
#include "kernels/linear/weights.h"

namespace metrale::kernels::linear {

const KernelSet& avx512_kernels() {
  static constexpr KernelSet kSet{.f32 = Body<Avx512, F32Weights<Avx512>>::kernels(),
                                  .bf16 = Body<Avx512, Bf16Weights<Avx512>>::kernels(),
                                  .f16 = Body<Avx512, F16Weights<Avx512>>::kernels()};
  return kSet;
}

}  // namespace metrale::kernels::linear
