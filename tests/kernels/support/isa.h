// SPDX-License-Identifier: Apache-2.0
// Runs a piece of a test with the kernels' AVX2 code, whatever the processor has.
#pragma once

#include <hwy/targets.h>

namespace metrale::kernels {

class ForceAvx2 {
 public:
  ForceAvx2() {
    hwy::SetSupportedTargetsForTest(HWY_AVX2);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~ForceAvx2() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ForceAvx2(const ForceAvx2&) = delete;
  ForceAvx2& operator=(const ForceAvx2&) = delete;
};

}  // namespace metrale::kernels
