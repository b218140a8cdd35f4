// SPDX-License-Identifier: Apache-2.0
// The main of every test program. METRALE_CPU_ISA masks instructions, so that one build tests every code
// path.
#include <cstdlib>

#include <gtest/gtest.h>

#include <metrale/base/cpu_features.h>

int main(int argc, char** argv) {
  if (const char* isa = std::getenv("METRALE_CPU_ISA")) metrale::limit_cpu_isa(metrale::parse_cpu_isa(isa));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
